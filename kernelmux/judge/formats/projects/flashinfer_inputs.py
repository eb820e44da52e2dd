"""Lengths of axes and inputs for a definition of flashinfer-bench, as its constraints and the names of its inputs ask.

Offsets (`*_indptr`, `cu_*`) rise from 0 to the axis that a constraint names, and all of a call cut at the same shares, so
that a sequence with many queries has many keys. Indices stay below the length of what they index; those of a state, which
is written, differ from each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from kernelmux.judge.formats.task import FormatError

DEFAULT = 64  # the length of a variable axis that no workload gives
LAST = re.compile(r"\s*(\w+)\s*==\s*(\w+)\[-1\](?:\.item\(\))?\s*")
PLUS_ONE = re.compile(r"\s*(\w+)\s*==\s*(\w+)\s*\+\s*1\s*")
AT_LEAST = re.compile(r"\s*(\w+)\s*(>=?)\s*(\w+)\s*")
PRODUCT = re.compile(r"\s*(\w+)\s*<=\s*(\w+)\s*\*\s*(\w+)\s*")
INDICES = re.compile(r"_?(batch_)?(indices|index|idx)$")
HEADS = ("head_dim", "head_dim_qk", "head_size")

Lengths = dict[str, int]


class DefinitionAxes:
    """The axes of a definition. variable: those that may be shortened, as no constraint makes them follow another one."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.told: Mapping[str, Any] = told["axes"]
        constraints = [str(c) for c in told.get("constraints") or ()]
        self.one_more = {m[1]: m[2] for c in constraints if (m := PLUS_ONE.fullmatch(c))}
        if "len_indptr" in self.told and "batch_size" in self.told:
            self.one_more.setdefault("len_indptr", "batch_size")
        self.least = [(m[1], m[3], m[2] == ">") for c in constraints if (m := AT_LEAST.fullmatch(c))]
        self.products = [(m[1], m[2], m[3]) for c in constraints if (m := PRODUCT.fullmatch(c))]
        self.least += [(pool, shape[0], False) for pool, shape in states(told["inputs"]).values()]
        variable = [n for n, axis in self.told.items() if axis.get("type") == "var"]
        self.variable = [n for n in variable if self.one_more.get(n) not in self.told]

    def lengths(self, given: Mapping[str, int]) -> Lengths:
        """The length of every axis: as given, else `DEFAULT`, and more where a constraint asks for that."""
        found = {
            n: int(a["value"]) if a.get("type") == "const" else int(given.get(n, DEFAULT)) for n, a in self.told.items()
        }
        for name, other, more in self.least:
            if name in self.variable and (other.isdigit() or other in found):
                found[name] = max(found[name], (int(other) if other.isdigit() else found[other]) + more)
        for product, name, factor in self.products:
            if name in self.variable and product in found and factor in found:
                found[name] = max(found[name], -(-found[product] // found[factor]))
        for name, other in self.one_more.items():
            if name in found and other in found:
                found[name] = found[other] + 1
        return found

    def halved(self, lengths: Mapping[str, int]) -> Lengths | None:
        """The lengths with the longest variable axis that can be shorter half as long; None where none can."""
        for name in sorted(self.variable, key=lambda n: -lengths[n]):
            least = 2 if "indptr" in name else 1  # offsets of one sequence
            shorter = self.lengths({**lengths, name: max(least, lengths[name] // 2)})
            if shorter[name] < lengths[name]:
                return shorter
        return None


class DrawnInputs:
    """Draws the inputs of a call of a definition, one after another. shares: where its offsets cut, from 0 to 1."""

    def __init__(self, told: Mapping[str, Any], axes: Lengths, seed: int) -> None:
        self.told, self.axes = told, axes
        self.lasts = {m[2]: m[1] for c in told.get("constraints") or () if (m := LAST.fullmatch(str(c)))}
        self.states = states(told["inputs"])
        self.rng = torch.Generator().manual_seed(seed)
        self.shares = torch.rand(max(axes.values(), default=0) + 1, generator=torch.Generator().manual_seed(~seed))

    def draw(self, name: str) -> Any:
        """The value of an input: a tensor, or a number where it has no shape."""
        tensor = self.told["inputs"][name]
        dtype, shape = dtype_of(tensor), shape_of(tensor, self.axes)
        if not shape:
            value = self._number(name) if dtype.is_floating_point else 0
            return value if shape is None else torch.tensor(value, dtype=dtype)
        if dtype == torch.bool:
            return torch.randint(0, 2, shape, generator=self.rng).bool()
        if not dtype.is_floating_point:
            packed = name == "topk_ids" and "packed" in str(tensor.get("description", "")).lower()
            return (self._packed(name, shape) if packed else self._integers(name, shape)).to(dtype)
        drawn = torch.randn(shape, generator=self.rng, dtype=torch.float32)
        if name == "routing_bias":
            drawn *= 0.125  # as large as the scores that it is added to, it sends every token to the same experts
        return (drawn if dtype.itemsize > 1 else drawn.clamp(-2, 2)).to(dtype)

    def _number(self, name: str) -> float:
        heads = [self.axes[axis] for axis in HEADS if axis in self.axes]
        return float(heads[0]) ** -0.5 if "scale" in name and heads else 1.0

    def _integers(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name in self.lasts or name.endswith("indptr") or name.startswith("cu_"):
            last = self.axes.get(self.lasts.get(name, ""), self.axes.get("total_kv", DEFAULT))
            inner = (self.shares[: max(0, shape[0] - 2)].sort().values * (last + 1)).long().clamp(max=last)
            return torch.cat([torch.zeros(1, dtype=torch.int64), inner, torch.full((1,), last)])[-shape[0] :]
        if name in self.states:
            return torch.randperm(self.axes[self.states[name][0]], generator=self.rng)[: shape[0]]
        if "len" in name:
            return torch.randint(1, self._longest(name) + 1, shape, generator=self.rng)
        return torch.randint(0, max(1, self._below(name)), shape, generator=self.rng)

    def _packed(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Experts in the upper 16 bits, and the bits of a weight from 0 to 1 in bf16 in the lower ones."""
        weights = torch.rand(shape, generator=self.rng).to(torch.bfloat16).view(torch.int16).int()
        return (self._integers(name, shape).int() << 16) | weights

    def _longest(self, name: str) -> int:
        page = self.axes.get("page_size", 1)
        if "page" in name:
            return page
        return max(1, self.axes["max_num_pages"] * page if "max_num_pages" in self.axes else page)

    def _below(self, name: str) -> int:
        """What the integers of an input are below."""
        axes = self.axes
        if name == "positions" and "max_seq_len" in axes:
            return axes["max_seq_len"]
        if name.startswith("topk"):
            return axes.get("num_experts", axes.get("num_local_experts", DEFAULT))
        if name.startswith("sparse"):
            return axes.get("num_pages", DEFAULT) * axes.get("page_size", 1)
        return axes.get("num_pages", DEFAULT) if "ind" in name or "table" in name else DEFAULT


def states(inputs: Mapping[str, Any]) -> dict[str, tuple[str, list[str]]]:
    """The inputs that index a state, each with the axis that it indexes and its own shape: state_indices of state."""
    found: dict[str, tuple[str, list[str]]] = {}
    for name, tensor in inputs.items():
        stem = INDICES.sub("", name)
        if stem != name and "state" in stem and stem in inputs and tensor.get("shape"):
            found[name] = (str(inputs[stem]["shape"][0]), list(tensor["shape"]))
    return found


def shape_of(tensor: Mapping[str, Any], axes: Mapping[str, int]) -> tuple[int, ...] | None:
    """The lengths of a tensor's axes; None for a number."""
    return None if tensor.get("shape") is None else tuple(axes[name] for name in tensor["shape"])


def dtype_of(tensor: Mapping[str, Any]) -> torch.dtype:
    """torch's dtype; FormatError for one that it has none for."""
    found = getattr(torch, str(tensor["dtype"]), None)
    if not isinstance(found, torch.dtype):
        raise FormatError(f"dtype: torch has no tensors of {tensor['dtype']} that it can compute with")
    return found
