"""Calls without their values: what a file keeps of a run, so that `kernelmux warm` compiles for it on any machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kernelmux.registry import catalog, dtypes
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.errors import ArgumentError, shown
from kernelmux.registry.spec.signature import Call
from kernelmux.registry.util import files

FORM = 1  # of the file
GPU = torch.device("cuda")
SCALARS = (bool, int, float, str, type(None))
UNKNOWN = object()  # in place of a value with symbols


class TensorForm(NamedTuple):
    """How a tensor lies in memory. strides, offset: in elements; dtype: "bf16"."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    offset: int = 0

    def hollow(self) -> torch.Tensor:
        """Such a tensor without memory."""
        base = torch.empty(0, dtype=dtypes.parse(self.dtype), device="meta")
        return base.as_strided(self.shape, self.strides, self.offset)

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape)) or 'scalar'}:{self.dtype}"


@dataclass(frozen=True)
class RecordedCall:
    """A call as it was made; equal calls are one in a set.

    backend: the one asked for, "auto" or "cuda,triton"; of a call that ran on a GPU the variant. arguments: names with
    scalars, and the forms of tensors.
    """

    op: str
    backend: str
    arguments: tuple[tuple[str, Any], ...]

    @staticmethod
    def of(op: str, values: Sequence[Any], backend: str) -> RecordedCall | None:
        """The call with these values, in the order of the signature; None where a length is a symbol, as in a trace."""
        names = catalog.spec(op).signature.parameters
        kept = tuple(map(_kept, values))
        return None if UNKNOWN in kept else RecordedCall(op, backend, tuple(zip(names, kept, strict=True)))

    def bound(self, capability: tuple[int, int]) -> Call:
        """The call on tensors without memory, on a GPU of that compute capability. ArgumentError as of any call."""
        values = {name: v.hollow() if isinstance(v, TensorForm) else v for name, v in self.arguments}
        return catalog.spec(self.op).bind(**values, device=GPU, capability=capability)

    @property
    def line(self) -> str:
        """The call as JSON."""
        told = {name: v._asdict() if isinstance(v, TensorForm) else v for name, v in self.arguments}
        return json.dumps({"op": self.op, "backend": self.backend, "arguments": told})

    def __str__(self) -> str:
        return f"{self.op} {' '.join(str(v) for _, v in self.arguments if isinstance(v, TensorForm))}"


def _kept(value: Any) -> Any:
    """A value as a call keeps it, or UNKNOWN."""
    if isinstance(value, torch.Tensor):
        numbers = (*value.shape, *value.stride(), value.storage_offset())
        known = value.dtype in SHORT and all(type(n) is int for n in numbers)
        rank = value.dim()
        return TensorForm(numbers[:rank], numbers[rank:-1], SHORT[value.dtype], numbers[-1]) if known else UNKNOWN
    if isinstance(value, tuple | list):
        kept = tuple(map(_kept, value))
        return UNKNOWN if UNKNOWN in kept else kept
    return value if type(value) in SCALARS else UNKNOWN


def write(path: Path, calls: Iterable[RecordedCall]) -> None:
    """Write each call once. OSError where the file cannot be written."""
    lines = dict.fromkeys(call.line for call in calls)
    files.write(path, f'{{"kernelmux_calls": {FORM}, "calls": [\n' + ",\n".join(lines) + "\n]}\n")


def read(path: Path, where: str) -> list[RecordedCall]:
    """The calls of a file. ArgumentError, which begins with `where`, for what is no such file, or a call that no operator
    takes; UnknownName for an operator that is not there."""
    head = f"{where}: {path}: expected a file of calls, as kernelmux.record() saves it"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{head}, got {type(error).__name__}: {error}") from None
    whole = isinstance(document, dict) and document.get("kernelmux_calls") == FORM
    if not whole or not isinstance(document.get("calls"), list):
        raise ArgumentError(f"{head}, got {shown(document)}")
    return [_read(told, head) for told in document["calls"]]


def _read(told: Any, head: str) -> RecordedCall:
    try:
        arguments = tuple((name, _value(value)) for name, value in told["arguments"].items())
        call = RecordedCall(told["op"], told["backend"], arguments)
    except Exception as error:  # of another form
        raise ArgumentError(f"{head}, got the call {shown(told)}: {type(error).__name__}: {error}") from None
    catalog.spec(call.op)
    return call


def _value(told: Any) -> Any:
    if isinstance(told, dict):
        return TensorForm(tuple(told["shape"]), tuple(told["strides"]), told["dtype"], told["offset"])
    return tuple(told) if isinstance(told, list) else told
