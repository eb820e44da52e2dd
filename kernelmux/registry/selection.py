"""`kernelmux/registry/choice/precedence.py`, under the name that the documentation gave it."""

from kernelmux.registry.choice.precedence import (
    RULES,
    STRICT,
    check_environment,
    from_environment,
    heads,
    requested,
    reread,
    set_default,
    without_variants,
    written,
)
from kernelmux.registry.choice.scope import asked as state
from kernelmux.registry.choice.scope import renew

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
