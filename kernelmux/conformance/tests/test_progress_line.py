"""What `nox -s tests` shows while it runs: one line with a count, and a failure at once."""

from __future__ import annotations

import runpy
from io import StringIO
from pathlib import Path

import pytest

run = runpy.run_path(str(Path(__file__).parents[3] / "bazel" / "pytest_line.py"))["run"]
TESTS = """
import pytest

@pytest.mark.parametrize("number", range(18))
def test_many(number):
    assert number != 11

def test_left_out():
    pytest.skip("no GPU")

@pytest.fixture
def broken():
    raise ValueError

def test_without_its_fixture(broken):
    pass
"""


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def shown(out: StringIO, folder: Path) -> str:
    """What the line writes while the tests above run, of which two fail."""
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    (folder / "test_few.py").write_text(TESTS)
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:benchmark", "-c", str(folder / "pytest.ini")]
    assert run([*options, str(folder)], out) == 1
    return out.getvalue()


def test_a_log_has_a_line_per_tenth_and_failures_where_they_happen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line.partition(" s")[0].rpartition(",")[0] or line for line in shown(StringIO(), tmp_path).splitlines()]
    assert lines[:2] == ["2 of 20 tests (10 %), 0 failed", "4 of 20 tests (20 %), 0 failed"]
    assert lines[5].startswith("FAILED ") and lines[5].endswith("test_few.py::test_many[11]")
    assert lines[6] == "12 of 20 tests (60 %), 1 failed" and "::test_without_its_fixture" in lines[-2]
    assert lines[-1] == "20 of 20 tests (100 %), 2 failed" and len(lines) == 12
    summary = capsys.readouterr().out
    assert "1 failed, 17 passed, 1 skipped, 1 error in" in summary and not summary.strip().startswith((".", "["))
    assert summary.count("\nFAILED ") == summary.count("\nERROR ") == 1


def test_a_terminal_has_one_line_that_is_written_over(tmp_path: Path) -> None:
    written = shown(Terminal(), tmp_path).split("\r\x1b[K")
    assert written[1].startswith("1 of 20 tests (5 %), 0 failed") and len(written) == 24  # each test, failure, the end
    assert [text.endswith("\n") for text in written].count(True) == 2, "only failures stay"
