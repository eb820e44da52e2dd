"""Who was asked to run a call: the first that speaks wins, and the answer says who spoke.

    backend= argument > with use(...) > set_default(op, ...) > KERNELMUX_BACKEND_<OP> > KERNELMUX_BACKEND > auto

A single name is strict: it runs or it raises. A chain ("cuda,triton" or a list) falls through, in order, on unmet
conditions only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache

from kernelmux.registry import catalog
from kernelmux.registry.backend import split
from kernelmux.registry.errors import ArgumentError, unknown

VARIABLE = "KERNELMUX_BACKEND"
Names = str | Sequence[str]


@dataclass(frozen=True)
class Request:
    """Backends in the order to try ("auto" alone: by priority), and who asked."""

    names: tuple[str, ...]
    source: str

    @property
    def auto(self) -> bool:
        return self.names == ("auto",)

    @property
    def strict(self) -> bool:
        return len(self.names) == 1 and not self.auto


AUTO = Request(("auto",), "auto")

_scope: ContextVar[tuple[tuple[frozenset[str] | None, Request], ...]] = ContextVar("kernelmux_use", default=())
_defaults: dict[str, Request] = {}
_generation = 0  # grows with every change of a default, so that cached decisions can tell


def parse(names: Names, source: str) -> Request:
    """A request from "cuda", "cuda/tiled", "cuda,triton" or a list of names; unknown names are errors."""
    listed = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
    if not listed or not all(isinstance(n, str) and n for n in listed):
        raise ArgumentError(f"backend: expected a name or a list of names, got {names!r} from {source}")
    for name in listed:
        if name != "auto":
            split(name, source)
    if "auto" in listed and len(listed) > 1:
        raise ArgumentError(f'backend: "auto" stands alone, got {names!r} from {source}')
    return Request(tuple(listed), source)


@contextmanager
def use(backend: Names, ops: Sequence[str] | None = None) -> Iterator[None]:
    """Choose backends for all calls inside the `with`, or those of `ops`; nests, and is local to thread and task."""
    for op in ops or ():
        _known(op)
    request = parse(backend, "use()")
    token = _scope.set((*_scope.get(), (frozenset(ops) if ops is not None else None, request)))
    try:
        yield
    finally:
        _scope.reset(token)


def set_default(op: str, backend: Names | None) -> None:
    """Choose backends for one operator in this process; None removes the choice."""
    global _generation
    _known(op)
    _generation += 1
    if backend is None:
        _defaults.pop(op, None)
    else:
        _defaults[op] = parse(backend, f"set_default({op!r})")


def _known(op: str) -> None:
    if op not in catalog.names():
        raise unknown("operator", op, catalog.names())


def requested(op: str, argument: Names | None) -> Request:
    """The request in force for a call of `op` with `backend=argument`."""
    if argument is not None:
        return parse(argument, "call argument")
    for ops, request in reversed(_scope.get()):
        if ops is None or op in ops:
            return request
    return _defaults.get(op) or from_environment(op)


@cache
def from_environment(op: str) -> Request:
    """The request of the environment, read once per operator."""
    for variable in (f"{VARIABLE}_{op.upper()}", VARIABLE):
        if value := os.environ.get(variable):
            return parse(value, variable)
    return AUTO


def check_environment() -> None:
    """Raise for a KERNELMUX_BACKEND_<OP> whose operator nobody knows."""
    known = {f"{VARIABLE}_{op.upper()}" for op in catalog.names()}
    for variable in os.environ:
        if variable.startswith(f"{VARIABLE}_") and variable not in known:
            raise unknown("environment variable", variable, sorted(known))


def state() -> tuple[object, ...]:
    """What a cached decision depends on besides the call itself."""
    return (_scope.get(), _generation)
