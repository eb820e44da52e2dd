"""Every spec, found by file name in `registry/ops/`: there is no list to keep."""

from __future__ import annotations

import copyreg
import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from kernelmux.registry import dtypes, ops
from kernelmux.registry.errors import ArgumentError, SpecError, unknown
from kernelmux.registry.spec import OpSpec


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """The operators, in alphabetical order."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(ops.__path__) if not m.name.startswith("_")))


def spec(op: str) -> OpSpec:
    """The spec of an operator; UnknownName with the nearest match if there is none."""
    if not isinstance(op, str) or op not in names():
        raise unknown("operator", op, names())
    return _spec(op)


@cache
def _spec(op: str) -> OpSpec:
    found = getattr(importlib.import_module(f"kernelmux.registry.ops.{op}"), "SPEC", None)
    if not isinstance(found, OpSpec) or found.name != op:
        raise SpecError(f"registry/ops/{op}.py: expected SPEC = OpSpec(name={op!r}, ...), got {found!r}")
    return found


def taking(wanted: Sequence[str]) -> tuple[str, ...]:
    """The operators that take one of these dtypes, as --dtype names them; all operators for ()."""
    formats = [dtypes.parse(name) for name in wanted]
    return tuple(op for op in names() if not formats or any(d in spec(op).dtypes for d in formats))


def left_out(wanted: Sequence[str]) -> str:
    """Which operators take none of these dtypes, in a line that names them or all others; "" if there is none."""
    taken, formats = taking(wanted), " or ".join(wanted)
    left = [op for op in names() if op not in taken]
    if len(left) > len(taken):
        others = f"{', '.join(taken)} alone take{'s' * (len(taken) == 1)} {formats}"
        return f"{others}: the other {len(left)} operators are left out"
    return f"left out, as they take no {formats}: {', '.join(left)}" if left else ""


def check_dtypes(named: Sequence[str], wanted: Sequence[str]) -> None:
    """ArgumentError if an operator that is named takes none of the dtypes of --dtype, or none takes one of them.

    named: () for all operators, some of which may take none.
    """
    for name in wanted:
        dtypes.parse(name)
    if not wanted:
        return
    if lacking := [op for op in named if op not in taking(wanted)]:
        raise ArgumentError(f"--dtype {' '.join(wanted)}: expected {_taken(lacking)}")
    for name in wanted:
        if not set(taking([name])) & set(named or names()):
            every = list(dict.fromkeys(dtypes.SHORT[d] for op in names() for d in spec(op).dtypes))
            known = _taken(named) if named else f"one of {', '.join(every)}, which the operators take"
            raise ArgumentError(f"--dtype {name}: expected {known}")


def _taken(named: Sequence[str]) -> str:
    """The dtypes of operators: one of fp32, fp16, bf16, which add, softmax take; one of e4m3, e5m2, which ..."""
    alike: dict[str, list[str]] = {}
    for op in dict.fromkeys(named):
        alike.setdefault(", ".join(dtypes.SHORT[d] for d in spec(op).dtypes), []).append(op)
    return "; ".join(f"one of {d}, which {', '.join(o)} take{'s' * (len(o) == 1)}" for d, o in alike.items())


def _by_name(found: OpSpec) -> tuple[Any, tuple[str]]:
    return spec, (found.name,)


# A spec is made of functions: what is pickled is its name.
copyreg.pickle(OpSpec, _by_name)
