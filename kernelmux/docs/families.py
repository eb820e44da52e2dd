"""The families under which the index lists the operators: each spec names its own."""

from __future__ import annotations

from collections.abc import Iterable

from kernelmux.registry import catalog

# Those that come first, in this order; others follow by name.
FIRST = (
    "Element by element",
    "Rows",
    "Reductions",
    "Losses",
    "Products",
    "Attention",
    "Images",
    "Moving data",
)


def by_family(ops: Iterable[str]) -> dict[str, list[str]]:
    """Operators under their families, in the order of the index."""
    found: dict[str, list[str]] = {}
    for op in ops:
        found.setdefault(catalog.spec(op).family, []).append(op)
    place = {name: i for i, name in enumerate(FIRST)}
    return {name: found[name] for name in sorted(found, key=lambda name: (place.get(name, len(FIRST)), name))}
