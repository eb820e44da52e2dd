"""Making a task smaller: its file's numbers are halved, largest effect first, until what it takes fits.

A problem of KernelBench names its sizes as variables of its module, which its functions read when they are called. What
a set of sizes takes is asked on torch's meta device, where tensors have no memory. Sizes with which the reference does not
run, or that change its number of outputs, are not used.
"""

from __future__ import annotations

import argparse
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

Sizes = dict[str, Any]
LEAST = 16  # a number below is taken for a kernel size, a stride or a count of heads, and stays
BATCH = 2  # at least: a batch of one hides steps from one to the next, and may be normalised to nothing
WIDTH = 64  # of a layer in a list, at least
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
FIRST = ("batch", "n_batch", "b")
FLOPS = 2.0**7  # flops that count as much as a byte


def sizes_of(module: types.ModuleType) -> Sizes:
    """The variables of a module that may be sizes: integers of 16 and more, and tuples and lists with such integers."""
    sizes: Sizes = {}
    for name, value in vars(module).items():
        if name.startswith("_") or isinstance(value, bool):
            continue
        if (isinstance(value, int) and value >= LEAST) or (_batch(name) and isinstance(value, int) and value > BATCH):
            sizes[name] = value
        elif isinstance(value, tuple | list) and value and all(isinstance(v, int) for v in value):
            if max(value) >= _least(value):
                sizes[name] = value
    return sizes


def fitting(module: types.ModuleType, cost: Callable[[], float | None], limit: float) -> str:
    """Halve sizes of the module until `cost` is within the limit; what was changed, "" if nothing.

    cost: what the module takes with its present sizes, None where it does not run with them. The sizes of a batch go
    first, as nothing else hangs on them. The module keeps the sizes that were found, also where they are still too large.
    """
    now, before = cost(), sizes_of(module)
    while now is not None and now > limit:
        if (step := _step(module, cost, now)) is None:
            break
        now = step
    changed = {name: getattr(module, name) for name in before if getattr(module, name) != before[name]}
    return ", ".join(f"{name} {before[name]} -> {value}" for name, value in changed.items())


def _step(module: types.ModuleType, cost: Callable[[], float | None], now: float) -> float | None:
    """Halve the size that makes the most of a difference, one of a batch if that helps; the new cost, None if none does.

    A number of groups goes with it: 512 channels in 512 groups would be normalised to nothing.

    All of them where none can be halved alone, as two that must be equal.
    """
    best: tuple[bool, float, Sizes] | None = None
    before = sizes_of(module)
    for name, value in before.items():
        for smaller in _ways(name, value, before):
            vars(module).update(smaller)
            there = cost()
            vars(module).update(before)
            if there is not None and there < 0.95 * now:
                best = min(best or (True, now, {}), (not _batch(name), there, smaller), key=lambda option: option[:2])
                break
    if best is not None:
        vars(module).update(best[2])
        return best[1]
    vars(module).update({name: _smaller(name, value) for name, value in before.items()})
    all_there = cost()
    if all_there is not None and all_there < 0.95 * now:
        return all_there
    vars(module).update(before)
    return None


def _ways(name: str, value: Any, sizes: Sizes) -> list[Sizes]:
    """What may be halved for a size: the numbers of groups that divide it too, so that groups keep their length."""
    alone = {name: _smaller(name, value)}
    parts = {
        n: _halved(g) for n, g in sizes.items() if "group" in n.lower() and isinstance(g, int) and _divides(g, value)
    }
    return [{**parts, **alone}, alone] if parts and not _batch(name) else [alone]


def _divides(part: int, value: Any) -> bool:
    return isinstance(value, int) and value > part and value % part == 0


def _batch(name: str) -> bool:
    return name.lower() in FIRST or name.lower().startswith("batch")


def _smaller(name: str, value: Any) -> Any:
    return max(BATCH, value // 2) if _batch(name) and isinstance(value, int) else _halved(value)


def _least(value: Sequence[int]) -> int:
    """The least number of a sequence that is halved: a list has widths of layers, which tell nothing if they are a few."""
    return 2 * WIDTH if isinstance(value, list) else LEAST


def _halved(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_halved(v) if v >= _least(value) else v for v in value)
    return max(1, value // 2)


def shortened(
    case: Mapping[str, Any], cost: Callable[[Mapping[str, Any]], float | None], limit: float
) -> Mapping[str, Any]:
    """The sizes of a case halved in the same way, where a format gives them as numbers by name; the seed stays."""
    home = types.ModuleType("case")
    vars(home).update({name: value for name, value in case.items() if name != "seed"})
    rest = {name: value for name, value in case.items() if name == "seed"}
    fitting(home, lambda: cost({name: getattr(home, name) for name in case if name != "seed"} | rest), limit)
    return {name: getattr(home, name) if name != "seed" else value for name, value in case.items()}


def effort(call: Callable[[], Any]) -> float:
    """Bytes of the tensors that a call returns, or of the largest one on the way, or its flops by `FLOPS`: the most."""
    largest = Largest()
    with torch.no_grad(), FlopCounterMode(display=False) as counter, largest:
        found = call()
    size = sum(x.numel() * x.element_size() for x in pytree.tree_leaves(found) if isinstance(x, torch.Tensor))
    return float(max(size, largest.size, counter.get_total_flops() / FLOPS))


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the bytes of the largest tensor that an operator returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [x.numel() * x.element_size() for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
        self.size = max([self.size, *sizes])
        return result


def byte_count(text: str) -> int:
    """An argument in bytes, for argparse: 16M, 4G."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if not match:
        raise argparse.ArgumentTypeError(f"expected bytes such as 64M or 4G, got {text!r}")
    return int(match[1]) * UNITS[match[2]]
