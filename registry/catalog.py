"""Every spec, found by file name in `registry/ops/`: there is no list to keep."""

from __future__ import annotations

import copyreg
import importlib
import pkgutil
from functools import cache, lru_cache
from typing import Any

from kernelmux.registry import ops
from kernelmux.registry.errors import SpecError, unknown
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


def _by_name(found: OpSpec) -> tuple[Any, tuple[str]]:
    return spec, (found.name,)


# A spec is made of functions: what is pickled is its name.
copyreg.pickle(OpSpec, _by_name)
