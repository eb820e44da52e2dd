"""Who can compute an operator: backends found by folder name or entry point, implementations found by file name.

A backend is a package with `BACKEND = Backend(...)` in its `__init__` and one module per operator that ends in
`VARIANTS = {name: Implementation(...)}`, in ladder order; the last variant whose conditions hold is the one
that a plain `backend="cuda"` runs. Packages in `kernelmux.backends` are found by name; others announce their package in
the entry-point group `kernelmux.backends`. Nothing is imported before it is needed.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernelmux.registry import catalog
from kernelmux.registry.conditions import Condition
from kernelmux.registry.errors import BackendUnavailable, SpecError, unknown
from kernelmux.registry.fingerprint import digest, sources

ENTRY_POINTS = "kernelmux.backends"
LAYOUTS = ("any", "last", "matrix", "contiguous")


@dataclass(frozen=True)
class Backend:
    """A way to compute operators.

    unavailable: given the device of a call, None or why this backend cannot work there. priority: the higher is tried
    first by "auto". emulates: on CPU tensors its GPU kernels run on the emulator, so "auto" never picks it there.
    emulation: entered around each emulated call. composite: made of torch's operators, so that autograd, tracing, fake
    tensors and views with the negative bit work as in torch; a backend with kernels of its own has none of these.
    """

    name: str
    summary: str
    priority: int
    unavailable: Callable[[torch.device], str | None]
    emulates: bool = False
    emulation: Callable[[], AbstractContextManager[object]] = nullcontext
    composite: bool = False


@dataclass(frozen=True)
class Implementation:
    """One idea of how to compute an operator.

    fn: takes every argument of the spec, in order, scalars normalised; returns fresh tensors.
    idea: the idea in one line.
    requires: conditions a call must meet.
    layout: per tensor "any" strides (default), "last" (unit stride in the last axis), "matrix" (unit stride in one of
    the last two axes) or "contiguous"; what does not fit is copied first.
    arithmetic: how it accumulates (`numerics.ARITHMETICS`); one of those that the spec allows.
    deterministic: the same call gives the same bits; False for sums in an order that changes, such as by atomics.
    """

    fn: Callable[..., Any]
    idea: str
    requires: tuple[Condition, ...] = ()
    layout: Mapping[str, str] = field(default_factory=dict)
    arithmetic: str = "fp32"
    deterministic: bool = True

    def reasons(self, call: Any) -> list[str]:
        """Why this implementation cannot run a call; empty if it can."""
        return [r for r in (c.check(call) for c in self.requires) if r]


@lru_cache(maxsize=1)
def _packages() -> dict[str, str]:
    """Backend name -> package that holds it."""
    home = importlib.import_module("kernelmux.backends")
    found = {m.name: f"{home.__name__}.{m.name}" for m in pkgutil.iter_modules(home.__path__) if m.ispkg}
    for point in metadata.entry_points(group=ENTRY_POINTS):
        if found.setdefault(point.name, point.value) != point.value:
            raise SpecError(f'backend "{point.name}" is registered twice: {found[point.name]} and {point.value}')
    return found


def backends() -> tuple[str, ...]:
    """Names of all registered backends, whether they work here or not."""
    return tuple(sorted(_packages()))


@cache
def backend(name: str) -> Backend:
    """The backend of that name; BackendUnavailable if its package cannot be imported."""
    if name not in _packages():
        raise unknown("backend", name, backends())
    try:
        found = getattr(importlib.import_module(_packages()[name]), "BACKEND", None)
    except ImportError as error:
        raise BackendUnavailable(f'backend "{name}" is registered but cannot be imported: {error}') from error
    if not isinstance(found, Backend):
        raise SpecError(f"{_packages()[name]}: expected BACKEND = Backend(...), got {found!r}")
    return found


@cache
def unavailable(name: str, device: torch.device) -> str | None:
    """Why a backend cannot work for tensors on `device`, or None."""
    try:
        return backend(name).unavailable(device)
    except BackendUnavailable as error:
        return str(error)


def implements(name: str, op: str) -> bool:
    """Whether the backend has a module for the operator, without importing it."""
    package = _packages()[name]
    return importlib.util.find_spec(f"{package}.{op}") is not None


@cache
def variants(name: str, op: str) -> dict[str, Implementation]:
    """The backend's implementations of an operator in ladder order; empty if it has none."""
    spec = catalog.spec(op)
    backend(name)
    if not implements(name, op):
        return {}
    module = importlib.import_module(f"{_packages()[name]}.{op}")
    found = getattr(module, "VARIANTS", None)
    if not isinstance(found, dict) or not found:
        raise SpecError(f"{module.__name__}: expected VARIANTS = {{name: Implementation(...)}}, got {found!r}")
    for variant, implementation in found.items():
        _check(f"{name}/{variant}", spec, implementation)
    return found


def _check(label: str, spec: Any, implementation: Any) -> None:
    if not isinstance(implementation, Implementation):
        raise SpecError(f"{label} of {spec.name}: expected an Implementation, got {implementation!r}")
    want = [i.name for i in spec.inputs]
    got = list(inspect.signature(implementation.fn).parameters)
    if got != want:
        wrong = next((i for i, (g, w) in enumerate(zip(got, want, strict=False)) if g != w), min(len(got), len(want)))
        raise SpecError(
            f"{label} registered {spec.name}({', '.join(got)}) but the spec is ({', '.join(want)}):"
            f" see parameter {wrong}"
        )
    bad = [v for v in implementation.layout.values() if v not in LAYOUTS]
    if bad:
        raise SpecError(f"{label} of {spec.name}: expected layouts among {', '.join(LAYOUTS)}, got {', '.join(bad)}")
    if implementation.arithmetic not in spec.arithmetics:
        allowed, got = ", ".join(spec.arithmetics), implementation.arithmetic
        raise SpecError(f"{label} of {spec.name}: expected an arithmetic that the spec allows ({allowed}), got {got!r}")


def split(name: str, where: str = "") -> tuple[str, str | None]:
    """ "cuda/tiled" -> ("cuda", "tiled"), "cuda" -> ("cuda", None); UnknownName if nobody registered the backend."""
    head, _, tail = name.partition("/")
    if head not in _packages():
        raise unknown("backend", head, backends(), where)
    return head, tail or None


def fits(x: torch.Tensor, layout: str) -> bool:
    """Whether the strides of a tensor satisfy a layout."""
    if layout == "any" or x.numel() == 0 or x.is_contiguous():
        return True
    if layout == "last":
        return x.dim() > 0 and (x.stride(-1) == 1 or x.shape[-1] == 1)
    if layout == "matrix":
        (m, n), (sm, sn) = x.shape[-2:], x.stride()[-2:]
        return (sn == 1 and sm >= n) or (sm == 1 and sn >= m)
    return False


def folder(name: str) -> Path | None:
    """Where the files of a backend's package are; None for one that cannot be found."""
    try:
        found = importlib.util.find_spec(_packages()[name])
    except (ImportError, ValueError):
        return None
    places = found.submodule_search_locations if found else None
    return Path(next(iter(places))) if places else None


def source_hash(name: str, op: str) -> str:
    """Twelve hex digits over the files of a backend that its implementation of an operator is made of.

    These are `fingerprint.sources` but for files named `_*_emulated.py`, which only work where there is no GPU: what a
    GPU has verified does not depend on them.
    """
    package = _packages()[name]
    home = Path(_module_file(importlib.import_module(package))).parent
    found = sorted(p for p in sources(home, package, op) if not p.name.endswith("_emulated.py"))
    return digest(text for p in found for text in (p.relative_to(home).as_posix(), p.read_text()))


def _module_file(module: ModuleType) -> str:
    if module.__file__ is None:
        raise SpecError(f"{module.__name__}: a backend must be a package with an __init__.py")
    return module.__file__
