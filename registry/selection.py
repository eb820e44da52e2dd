"""Who was asked to run a call: the first that speaks wins, and the answer says who spoke.

    backend= argument > with use(...) > set_default(op, ...) > KERNELMUX_BACKEND_<OP> > KERNELMUX_BACKEND > auto

A single name is strict: it runs or it raises. A chain ("cuda,triton" or a list) falls through, in order, on unmet
conditions only. The environment is read once, for all operators, at the first call; a misspelt variable is an error.
"""

from __future__ import annotations

import threading

from kernelmux.registry import requests, scope
from kernelmux.registry.requests import AUTO, VARIABLE, Names, Request, parse
from kernelmux.registry.scope import use

__all__ = ["VARIABLE", "Names", "Request", "check_environment", "from_environment", "requested", "set_default", "use"]

_lock = threading.Lock()
_defaults: dict[str, Request] = {}
_generation = 0  # grows with every change of a default, so that cached decisions can tell


def set_default(op: str, backend: Names | None) -> None:
    """Choose backends for one operator in this process; None removes the choice."""
    global _generation
    requests.check_operator(op)
    request = None if backend is None else parse(backend, f"set_default({op!r})")
    with _lock:  # the table first: a call in between is remembered under the old generation, which never comes back
        if request is None:
            _defaults.pop(op, None)
        else:
            _defaults[op] = request
        _generation += 1


def requested(op: str, argument: Names | Request | None) -> Request:
    """The request in force for a call of `op` with `backend=argument`; a request is taken as it is."""
    requests.environment()
    if isinstance(argument, Request):
        return argument
    if argument is not None:
        return parse(argument, "call argument")
    return scope.find(op) or _defaults.get(op) or from_environment(op)


def from_environment(op: str) -> Request:
    """The request of the environment for an operator."""
    found = requests.environment()
    return found.get(op) or found.get("") or AUTO


def check_environment() -> None:
    """Raise UnknownName for a variable of ours whose operator or backend is not known."""
    requests.environment()


def state() -> tuple[object, ...]:
    """What a cached decision depends on besides the call itself."""
    return (scope.state(), _generation)
