"""Every spec, found by file name in `kernelmux/registry/ops/` and in packages elsewhere: there is no list to keep."""

from __future__ import annotations

import copyreg
import importlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from kernelmux.registry import dtypes, elsewhere
from kernelmux.registry.errors import ArgumentError, KernelmuxError, SpecError, unknown
from kernelmux.registry.spec.gradient import Gradient
from kernelmux.registry.spec.op_spec import OpSpec
from kernelmux.registry.spec.signature import schema
from kernelmux.registry.util import torch_modes


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """The operators, in alphabetical order; those of packages elsewhere too, whether their specs can be loaded or not."""
    return tuple(sorted((*elsewhere.own(), *elsewhere.listed().owners)))


def usable() -> tuple[str, ...]:
    """The operators but for those of packages elsewhere whose specs cannot be loaded."""
    return tuple(op for op in names() if not problem(op))


def problem(op: str) -> str:
    """Why the spec of an operator elsewhere cannot be loaded, or ""; of ours each can."""
    if elsewhere.owner(op) is None:
        return ""
    try:
        spec(op)
    except KernelmuxError as error:
        return str(error)
    return ""


def spec(op: str) -> OpSpec:
    """The spec of an operator; UnknownName with the nearest match if there is none, SpecError for one that is no spec."""
    if isinstance(op, str) and op in _known:
        return _known[op]
    if not isinstance(op, str) or op not in names():
        if isinstance(op, str) and (why := elsewhere.listed().refused.get(op)):
            raise SpecError(why)
        raise unknown("operator", op, names())
    if why := _broken.get(op):
        raise SpecError(why)
    try:
        return _known.setdefault(op, _spec(op))
    except SpecError as error:
        _broken[op] = str(error)
        raise


_known: dict[str, OpSpec] = {}
_broken: dict[str, str] = {}  # operators elsewhere that failed once: to import them at each call would only take time


def _spec(op: str) -> OpSpec:
    package = elsewhere.owner(op)
    home = package.package if package else "kernelmux.registry"
    file = f"{home.removeprefix('kernelmux.').replace('.', '/')}/{elsewhere.OPS}/{op}.py"
    try:
        with torch_modes.outside():
            found = getattr(importlib.import_module(f"{home}.{elsewhere.OPS}.{op}"), "SPEC", None)
    except (Exception, SystemExit) as error:
        if package is None:
            raise
        told = str(error) if isinstance(error, SpecError) else f"{type(error).__name__}: {error}"
        raise SpecError(f"{file} cannot be imported: {told}") from error
    if not isinstance(found, OpSpec) or found.name != op:
        raise SpecError(f"{file}: expected SPEC = OpSpec(name={op!r}, ...), got {found!r}")
    if package:
        _check_elsewhere(found, file)
    return found


def taking(wanted: Sequence[str]) -> tuple[str, ...]:
    """The operators that take one of these dtypes, as --dtype names them; all for (), those that cannot be used too."""
    formats = [dtypes.parse(name) for name in wanted]
    return tuple(
        op for op in (usable() if formats else names()) if not formats or any(d in spec(op).dtypes for d in formats)
    )


def left_out(wanted: Sequence[str]) -> str:
    """Which operators take none of these dtypes, in a line that names them or all others; "" if there is none."""
    taken, formats = taking(wanted), " or ".join(wanted)
    left = [op for op in usable() if op not in taken]
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
        if not set(taking([name])) & set(named or usable()):
            every = list(dict.fromkeys(dtypes.SHORT[d] for op in usable() for d in spec(op).dtypes))
            known = _taken(named) if named else f"one of {', '.join(every)}, which the operators take"
            raise ArgumentError(f"--dtype {name}: expected {known}")


def _taken(named: Sequence[str]) -> str:
    """The dtypes of operators: one of fp32, fp16, bf16, which add, softmax take; one of e4m3, e5m2, which ..."""
    alike: dict[str, list[str]] = {}
    for op in dict.fromkeys(named):
        alike.setdefault(", ".join(dtypes.SHORT[d] for d in spec(op).dtypes), []).append(op)
    return "; ".join(f"one of {d}, which {', '.join(o)} take{'s' * (len(o) == 1)}" for d, o in alike.items())


def _check_elsewhere(found: OpSpec, file: str) -> None:
    """SpecError for a spec that torch has no form for, or whose gradient is an operator that cannot be loaded."""
    form = schema(found)
    try:
        torch._C.parse_schema(form)
    except RuntimeError as error:
        told = str(error).strip().splitlines()[0]
        raise SpecError(f"{file}: torch cannot have an operator {form}: {told}") from error
    if isinstance(found.gradient, Gradient):
        try:
            spec(found.gradient.op)
        except KernelmuxError as error:
            raise SpecError(f"{file}: its gradient is the operator {found.gradient.op}: {error}") from error


def refusing(op: str) -> Callable[..., Any]:
    """What stands for the public function of an operator elsewhere that cannot be loaded: a call raises the reason."""

    def refused(*args: Any, **kwargs: Any) -> Any:
        raise SpecError(f"{op}: this operator cannot be used: {problem(op)}")

    refused.__name__ = refused.__qualname__ = op
    refused.__doc__ = f"Not available: {problem(op)}"
    return refused


def forget() -> None:
    """Find the operators again when they are next asked for."""
    elsewhere.forget()
    names.cache_clear()
    _known.clear()
    _broken.clear()


def _by_name(found: OpSpec) -> tuple[Any, tuple[str]]:
    return spec, (found.name,)


# A spec is made of functions: what is pickled is its name.
copyreg.pickle(OpSpec, _by_name)
