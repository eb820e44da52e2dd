"""`kernelmux/registry/spec/conditions.py`, under the name by which specs and backends of other packages import it."""

from kernelmux.registry.spec.conditions import (
    Aligned,
    AtDefault,
    AtLeast,
    AtMost,
    Capability,
    Condition,
    Dtypes,
    MostRows,
    Multiple,
    Multiplies,
    OneOf,
    SharedMemory,
    Unmet,
    sm,
    unmet,
)

__all__ = [
    "Aligned",
    "AtDefault",
    "AtLeast",
    "AtMost",
    "Capability",
    "Condition",
    "Dtypes",
    "MostRows",
    "Multiple",
    "Multiplies",
    "OneOf",
    "SharedMemory",
    "Unmet",
    "sm",
    "unmet",
]
