"""Warnings around a call that a check makes: those that it provokes are silent, what is worth reading is a remark."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kernelmux.emulator import RedundantStore
from kernelmux.registry.errors import DeterminismWarning, FallbackWarning


@contextmanager
def quiet() -> Iterator[None]:
    """Calls on the emulator, chains and flags that a check makes on purpose give no warnings."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*on the emulator.*")
        warnings.filterwarnings("always", category=RedundantStore)
        warnings.simplefilter("ignore", FallbackWarning)  # of a chain that a check makes on purpose
        warnings.simplefilter("ignore", DeterminismWarning)  # of a flag that a check sets
        yield


@contextmanager
def noted(remark: Callable[[str], None]) -> Iterator[None]:
    """What the emulator says of redundant stores is a remark, once for each text: they are no error of the author.

    The compiler lets several threads store one result, each rounded in its own way. All other warnings go on.
    """
    with warnings.catch_warnings(record=True) as caught:
        try:
            yield
        finally:
            found = list(caught)
    for text in dict.fromkeys(str(w.message) for w in found if issubclass(w.category, RedundantStore)):
        remark(text)
    for w in found:
        if not issubclass(w.category, RedundantStore):
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno, source=w.source)
