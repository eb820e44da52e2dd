"""Making a task smaller: its file's numbers are halved, largest effect first, until what it takes fits.

A problem of KernelBench names its sizes as variables of its module, which its functions read when they are called. What
a set of sizes takes is asked on torch's meta device, where tensors have no memory. Sizes with which the reference does not
run, or that change its number of outputs, are not used.
"""

from __future__ import annotations

import argparse
import re
import types
from collections.abc import Callable, Mapping
from typing import Any

Sizes = dict[str, Any]
LEAST = 16  # a number below is taken for a kernel size, a stride or a count of heads, and stays
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
FIRST = ("batch", "n_batch", "b")


def sizes_of(module: types.ModuleType) -> Sizes:
    """The variables of a module that may be sizes: integers of 16 and more, and tuples with such integers."""
    sizes: Sizes = {}
    for name, value in vars(module).items():
        if name.startswith("_") or isinstance(value, bool):
            continue
        if (isinstance(value, int) and value >= LEAST) or (_batch(name) and isinstance(value, int) and value > 1):
            sizes[name] = value
        elif isinstance(value, tuple) and value and all(isinstance(v, int) for v in value) and max(value) >= LEAST:
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

    All of them where none can be halved alone, as two that must be equal.
    """
    best: tuple[bool, float, str, Any] | None = None
    for name, value in sizes_of(module).items():
        smaller = _halved(value)
        setattr(module, name, smaller)
        there = cost()
        setattr(module, name, value)
        if there is not None and there < 0.95 * now:
            option = (not _batch(name), there, name, smaller)
            best = option if best is None or option[:2] < best[:2] else best
    if best is not None:
        setattr(module, best[2], best[3])
        return best[1]
    before = sizes_of(module)
    vars(module).update({name: _halved(value) for name, value in before.items()})
    all_there = cost()
    if all_there is not None and all_there < 0.95 * now:
        return all_there
    vars(module).update(before)
    return None


def _batch(name: str) -> bool:
    return name.lower() in FIRST or name.lower().startswith("batch")


def _halved(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_halved(v) if v >= LEAST else v for v in value)
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


def byte_count(text: str) -> int:
    """An argument in bytes, for argparse: 16M, 4G."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if not match:
        raise argparse.ArgumentTypeError(f"expected bytes such as 64M or 4G, got {text!r}")
    return int(match[1]) * UNITS[match[2]]
