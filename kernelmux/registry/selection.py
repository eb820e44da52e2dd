"""`kernelmux/registry/choice/precedence.py`, under the name that the documentation gave it."""

from kernelmux.registry.choice.precedence import (
    RULES,
    STRICT,
    check_environment,
    from_environment,
    heads,
    renew,
    requested,
    reread,
    set_default,
    state,
    without_variants,
    written,
)

__all__ = [
    "RULES",
    "STRICT",
    "check_environment",
    "from_environment",
    "heads",
    "renew",
    "requested",
    "reread",
    "set_default",
    "state",
    "without_variants",
    "written",
]
