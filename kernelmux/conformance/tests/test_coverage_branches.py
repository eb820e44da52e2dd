"""Marks in launchers: every way of every condition is noted, and a function does what it did."""

from __future__ import annotations

import importlib.util
import traceback
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kernelmux import emulator
from kernelmux.conformance.coverage import branches, launcher_marks
from kernelmux.conformance.coverage.launcher_marks import Ways

SOURCE = '''
"""A launcher."""
from functools import cache


def jit(fn):
    return fn


if __name__ == "__main__":
    print("no function")


def conditions(n, flag=None if __name__ else 0):
    """Text."""
    if n > 1024:
        kind = "large"
    elif n == 7:
        raise ValueError("seven")
    else:
        kind = "odd" if n % 2 else "even"
    while n > 5000:
        n -= 1
    return kind


def loops(values):
    for value in values:
        if value < 0: break
    return [v for v in values if v > 1]


def errors(value):
    try:
        return 1 // value
    except ZeroDivisionError:
        return 0
    except TypeError as error:
        raise ValueError("no number") from error


def cases(value):
    match value:
        case 1 | 2:
            return "few"
        case _:
            return "many"


class Launcher:
    def __init__(self, wide): self.tile = (lambda n: 64 if n > 64 else 32) if wide else None

    @cache
    def size(self, n):
        return self.tile(n) if self.tile else n


def outer(n):
    def inner(x):
        return x if x > n else n

    return inner


WIDE, KEPT = Launcher(True), outer(3)


@jit
def compiled(x):
    if x:
        return 1
    return 2
'''
LINES = SOURCE.splitlines()


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[ModuleType]:
    path = tmp_path / "launcher.py"
    path.write_text(SOURCE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("launcher_with_branches", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    launcher_marks.restore()


def left(module: ModuleType, *calls: Any) -> list[str]:
    """What was not reached by the calls: "18 `if n % 2`", of conditions that were asked."""
    path, ways = Path(str(module.__file__)), Ways()
    launcher_marks.mark(path.parent)
    with launcher_marks.noted(ways):
        for call in calls:
            call()
    noted = ways.get(path, set())
    found = []
    for number, point in enumerate(branches.points(path)):
        if {2 * number, 2 * number + 1} & noted:
            found += [f"{point.line} {point.way(way)}" for way in point.asked if 2 * number + way not in noted]
    return found


def line(text: str) -> int:
    (found,) = [number for number, one in enumerate(LINES, 1) if text in one]
    return found


def test_every_way_of_a_condition_is_asked_but_what_raises(launcher: ModuleType) -> None:
    large, odd, loop = line("if n > 1024"), line('"odd" if'), line("while n")
    ways = {"8": lambda: launcher.conditions(8), "9": lambda: launcher.conditions(9)}
    never = [f"{large} `if n > 1024`", f"{loop} `while n > 5000`"]
    assert left(launcher, ways["8"]) == [never[0], f"{odd} `if n % 2`", never[1]]
    assert left(launcher, *ways.values()) == never
    assert left(launcher, *ways.values(), lambda: launcher.conditions(5001)) == []
    with pytest.raises(ValueError, match="seven"):
        left(launcher, lambda: launcher.conditions(7))


def test_a_loop_and_a_filter_and_a_condition_on_one_line(launcher: ModuleType) -> None:
    loop, stop, kept = line("for value in"), line("if value < 0"), line("[v for v")
    assert left(launcher, lambda: launcher.loops([])) == [f"{loop} `for value in values`"]
    assert left(launcher, lambda: launcher.loops([5])) == [
        f"{stop} `if value < 0`",
        f"{kept} `if v > 1` that does not hold",
    ]
    assert left(launcher, lambda: launcher.loops([5, 1, -1])) == []


def test_a_handler_and_a_case(launcher: ModuleType) -> None:
    handler = f"{line('except ZeroDivisionError')} `except ZeroDivisionError`"
    assert left(launcher, lambda: launcher.errors(1)) == [handler]
    assert left(launcher, lambda: launcher.errors(1), lambda: launcher.errors(0)) == []
    few = f"{line('case 1 | 2')} `case 1 | 2`"
    assert left(launcher, lambda: launcher.cases(5)) == [few]
    assert left(launcher, lambda: launcher.cases(5), lambda: launcher.cases(1)) == []


def test_functions_that_exist_already_are_marked_wherever_they_are_held(launcher: ModuleType) -> None:
    """A method behind a cache, a lambda that an object has kept, a closure."""
    large = f"{line('lambda n')} `if n > 64`"
    assert left(launcher, lambda: launcher.WIDE.size(1)) == [
        large,
        f"{line('self.tile(n) if')} `if self.tile` that does not hold",
    ]
    assert left(launcher, lambda: launcher.WIDE.tile(1), lambda: launcher.WIDE.tile(65)) == []
    assert left(launcher, lambda: launcher.KEPT(5)) == [f"{line('x if x > n')} `if x > n` that does not hold"]


def test_what_is_not_python_when_it_runs_and_the_top_of_a_module_have_no_marks(launcher: ModuleType) -> None:
    places = {point.line for point in branches.points(Path(str(launcher.__file__)))}
    assert not places & {line("if x:"), line("if __name__ =="), line("def conditions")}


def test_results_errors_and_their_lines_stay(launcher: ModuleType) -> None:
    launcher_marks.mark(Path(str(launcher.__file__)).parent)
    assert [launcher.conditions(n) for n in (8, 9, 2000)] == ["even", "odd", "large"]
    assert launcher.loops([0, 2, 3]) == [2, 3] and launcher.errors(0) == 0 and launcher.cases(2) == "few"
    assert launcher.WIDE.size(65) == 64 and launcher.outer(3)(1) == 3
    with pytest.raises(ValueError, match="seven") as raised:
        launcher.conditions(7)
    assert traceback.extract_tb(raised.tb)[-1].lineno == line('ValueError("seven")')


def test_a_condition_is_evaluated_once(launcher: ModuleType) -> None:
    class Counted(int):
        asked = 0

        def __gt__(self, other: int) -> bool:
            Counted.asked += 1
            return int(self) > other

    launcher_marks.mark(Path(str(launcher.__file__)).parent)
    assert launcher.WIDE.tile(Counted(65)) == 64 and Counted.asked == 1


def test_calls_whose_kernels_do_not_run_reach_nothing(launcher: ModuleType) -> None:
    def call() -> None:
        with emulator.recorder(run=False):
            launcher.conditions(2000)

    even = lambda: launcher.conditions(8)  # noqa: E731
    assert left(launcher, even, call) == left(launcher, even) != left(launcher, even, lambda: launcher.conditions(2000))


def test_a_weak_proxy_of_what_is_gone_is_passed_over(launcher: ModuleType) -> None:
    held = launcher.Launcher(True)
    proxy = weakref.proxy(held)
    del held
    assert left(launcher, lambda: launcher.KEPT(5)) and proxy is not None


def test_functions_get_their_own_code_back(launcher: ModuleType) -> None:
    before = launcher.conditions.__code__
    launcher_marks.mark(Path(str(launcher.__file__)).parent)
    assert launcher.conditions.__code__ != before
    launcher_marks.restore()
    assert launcher.conditions.__code__ is before
