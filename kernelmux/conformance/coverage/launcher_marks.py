"""Lets the functions of a backend that are loaded say which way their conditions go.

A function gets the code of the same lines with marks (`branches`) in place of its own: every reference to it runs
that. Only code of files inside of the folder of the backend changes.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from kernelmux.conformance.coverage import branches
from kernelmux.emulator import launch_log

Ways = dict[Path, set[int]]  # of each file: 2 * point for a condition that did not hold, 2 * point + 1 for one that did

_changed: list[tuple[FunctionType, CodeType]] = []
_marks: dict[Path, Callable[[int, Any], bool]] = {}  # what the marks of a file call
# By folder: how many modules there were when its functions were looked for, and the names of those that lie in it.
_looked: dict[Path, tuple[int, frozenset[str]]] = {}
_noted: Ways | None = None  # where ways are noted at the moment


def mark(home: Path) -> None:
    """Put marks into the functions of a folder that have none: of modules that were loaded since this was last asked."""
    count, known = _looked.get(home, (0, None))
    if count == len(sys.modules):
        return
    start = f"{home}/"
    loaded = frozenset(name for name, module in list(sys.modules.items()) if _file(module).startswith(start))
    _looked[home] = len(sys.modules), loaded
    if loaded == known:
        return
    for one in gc.get_objects():  # of a weak proxy isinstance would ask what may be gone
        if type(one) is FunctionType and one.__code__.co_filename.startswith(start):
            _mark_function(one)


@contextmanager
def noted(ways: Ways) -> Iterator[None]:
    """Adds what marked functions do inside of the `with` to `ways`.

    What runs inside of `emulator.recorder(run=False)` does not count: it computes no result.
    """
    global _noted
    before, _noted = _noted, ways
    try:
        yield
    finally:
        _noted = before


def restore() -> None:
    """Give every function its own code back."""
    while _changed:
        function, code = _changed.pop()
        function.__code__ = code
    _marks.clear()
    _looked.clear()


def _file(module: object) -> str:
    """The file of a module, without asking those that answer by importing more."""
    return str(getattr(module, "__dict__", {}).get("__file__", ""))


def _mark_function(function: FunctionType) -> None:
    path = Path(function.__code__.co_filename)
    file = branches.marked(path)
    code = file.code.get(function.__code__) if file else None
    if code is None:  # it has no branches, or marks already
        return
    if path not in _marks:
        _marks[path] = _marking(path)
    function.__globals__[branches.MARK] = _marks[path]
    _changed.append((function, function.__code__))
    function.__code__ = code


def _marking(path: Path) -> Callable[[int, Any], bool]:
    def branch(number: int, value: Any) -> bool:
        """The truth of a condition, which is noted."""
        truth = bool(value)
        if _noted is not None and launch_log.running():
            _noted.setdefault(path, set()).add(2 * number + truth)
        return truth

    return branch
