"""What a variant changes around itself when it is first called in a process, where later calls find it changed already.

And what the import of its module changes. `ambience` tells both: it compares before and after a call, but by then others
have been made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kernelmux.candidate import global_state
from kernelmux.registry.backend import lookup as registered

# What the import of a package that a call needs may change: libraries set variables and filters of their own.
OF_IMPORTS = ("the environment", "the warnings filters", "the recursion limit")

_changed: dict[str, list[str]] = {}  # by operator and variant, for those that were called


@contextmanager
def watched(op: str, label: str) -> Iterator[None]:
    """The first call of a variant: what it changes is remembered. Later ones cost nothing."""
    key = f"{op}/{label}"
    if key in _changed:
        yield
        return
    _changed[key] = []
    before = global_state.snapshot()
    try:
        yield
    finally:
        _changed[key] = _differences_since(before)


def changed(op: str, label: str) -> list[str]:
    """What the first call of a variant has changed, with both values; and before that the import of its module."""
    return [*_imports.get(label.partition("/")[0], ()), *_changed.get(f"{op}/{label}", ())]


def _differences_since(before: dict[str, object]) -> list[str]:
    after = global_state.snapshot()
    kept = {name: value for name, value in before.items() if name not in OF_IMPORTS}
    return global_state.differences(kept, after)


# --- imports ---------------------------------------------------------------------------------------------------------

_imports: dict[str, list[str]] = {}  # by backend


@contextmanager
def _import(backend: str, module: str) -> Iterator[None]:
    before = global_state.snapshot()
    try:
        yield
    finally:
        if found := _differences_since(before):
            _imports.setdefault(backend, []).append(f"{'; '.join(found)} (the import of {module})")


registered.around_imports.append(_import)
