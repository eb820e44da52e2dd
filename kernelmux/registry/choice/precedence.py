"""Who was asked to run a call: the first that speaks wins, and the answer says who spoke.

    backend= argument > with use(...) > set_default(op, ...) > KERNELMUX_BACKEND_<OP> > KERNELMUX_BACKEND
    > the first rule of the configuration file that fits > its general backend > auto

A single name runs or raises. A chain ("cuda,triton" or a list) falls through, in order, on unmet conditions only, and not
inside of `use(..., strict=True)`. Environment and configuration file (`config_file`) are read once, for all operators, at
the first call; a misspelt name in them is an error.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.choice import config_file, requests, scope
from kernelmux.registry.choice.requests import AUTO, VARIABLE, Names, Request, parse
from kernelmux.registry.choice.scope import Choice, use
from kernelmux.registry.spec.signature import Call

__all__ = [
    "VARIABLE",
    "Names",
    "Request",
    "check_environment",
    "from_environment",
    "requested",
    "reread",
    "set_default",
    "use",
]

_lock = threading.Lock()
_defaults: dict[str, Request] = {}


def set_default(op: str, backend: Names | None) -> None:
    """Choose backends for one operator in this process; None removes the choice."""
    requests.check_operator(op)
    request = None if backend is None else parse(backend, f"set_default({op!r})")
    with _lock:  # the table first: a call in between is remembered under the old generation, which never comes back
        if request is None:
            _defaults.pop(op, None)
        else:
            _defaults[op] = request
        scope.renew()


STRICT = "strict "  # before a chain: `use(strict=True)` was in force
RULES = "the rules of the configuration file"  # in place of a chain: they look at the call


def requested(
    op: str,
    argument: Names | Request | None,
    call: Call | None = None,
    scopes: tuple[Choice, ...] | None = None,
) -> Request:
    """The request in force for a call of `op` with `backend=argument`; a request, or what `written` gave, as it is.

    call: the bound call, at which the rules of a configuration file look; without it those speak that need no call.
    scopes: the choices of `use()` in force, where they were read already.
    """
    requests.environment()
    settings = config_file.read()
    if isinstance(argument, Request):
        return argument
    scopes = scope.state() if scopes is None else scopes
    strict = _strict(op, scopes)
    if isinstance(argument, str) and (argument.startswith(STRICT) or argument == RULES):
        names = argument.removeprefix(STRICT)
        found = (settings.request(op, call) or AUTO) if names == RULES else parse(names, "the graph")
        return replace(found, strict=argument != names)
    if argument is not None:
        found = parse(argument, "call argument")
    else:
        found = _spoken(op, scopes) or settings.request(op, call) or AUTO
    return replace(found, strict=True) if strict else found


def written(op: str, argument: Names | Request | None) -> str:
    """The request in force as a text for an operator of torch, which a graph holds; `requested` reads it."""
    scopes = scope.state()
    found = requested(op, argument, None, scopes)
    silent = argument is None and _spoken(op, scopes) is None and config_file.read().rules
    return (STRICT if found.strict else "") + (RULES if silent else ",".join(found.names))


def _spoken(op: str, scopes: tuple[Choice, ...]) -> Request | None:
    """What scopes, defaults and the environment say of an operator."""
    return _of_scopes(op, scopes) or _defaults.get(op) or _of_environment(op)


def _of_scopes(op: str, scopes: tuple[Choice, ...]) -> Request | None:
    """The innermost choice that speaks of an operator."""
    return next((request for ops, request in reversed(scopes) if ops is None or op in ops), None) if scopes else None


def _strict(op: str, scopes: tuple[Choice, ...]) -> bool:
    """Whether a scope that speaks of an operator, the innermost or one around it, forbids fallbacks."""
    return bool(scopes) and any(request.strict for ops, request in scopes if ops is None or op in ops)


def _of_environment(op: str) -> Request | None:
    found = requests.environment()
    return found.get(op) or found.get("")


def from_environment(op: str) -> Request:
    """The request of the environment for an operator."""
    return _of_environment(op) or AUTO


def check_environment() -> None:
    """Raise UnknownName or ArgumentError for what is wrong in our variables, or in the configuration file."""
    requests.environment()
    config_file.read()


def reread() -> None:
    """Read the environment and the configuration file again, look at each ladder anew, and choose anew for every call."""
    with _lock:
        registered.forget_ladders()
        requests.environment.cache_clear()
        config_file.read.cache_clear()
        scope.renew()


def without_variants(backend: str | None) -> str | None:
    """The backends of a chain without variants, "cuda/tiled,triton" -> "cuda,triton": what a backward asks for."""
    if backend is None or backend.endswith(RULES):
        return backend
    strict, names = backend.startswith(STRICT), backend.removeprefix(STRICT)
    return (STRICT if strict else "") + ",".join(heads(parse(names, "call argument").names))


def heads(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(n if n == "auto" else registered.split(n)[0] for n in names))
