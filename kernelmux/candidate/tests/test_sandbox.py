"""The walls, and what is there without them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from kernelmux.candidate import sandbox
from kernelmux.candidate.limits import Limits
from kernelmux.candidate.process import CandidateProcess

F = "import os, tempfile, torch\ndef f(x):\n    assert os.getcwd() == os.environ['HOME'] == tempfile.gettempdir()\n"


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine without bubblewrap."""
    sandbox.bubblewrap.cache_clear()
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    yield
    sandbox.bubblewrap.cache_clear()


def test_without_bubblewrap_it_says_so_and_has_a_scratch_folder(without: None, tmp_path: Path) -> None:
    (told,) = sandbox.not_held()
    assert told.startswith("bubblewrap (bwrap) is of no use here: it is not installed, so that network")
    (tmp_path / "mine.py").write_text(f"{F}    open('kept', 'w').write('x')\n    return x + 1\n", encoding="utf-8")
    with CandidateProcess(tmp_path / "mine.py", "f", "cpu") as process:
        assert process.call((torch.zeros(2),)).tolist() == [1, 1]
        scratch = Path(os.readlink(f"/proc/{process._worker.popen.pid}/cwd")) if process._worker else Path()
        assert (scratch / "kept").read_text(encoding="utf-8") == "x"
    assert not scratch.exists()


def test_a_folder_that_holds_more_than_the_candidate_is_not_shown(tmp_path: Path) -> None:
    """Of a home, and of what this project lies in, it sees the file alone."""
    for folder in (Path.home(), sandbox.HOME.parent, sandbox.HOME, Path("/")):
        words = list(sandbox._walls(folder / "mine.py", Limits()))
        assert str(folder / "mine.py") in words and ("--ro-bind", str(folder)) not in pairwise(words)
    words = list(sandbox._walls(tmp_path / "mine.py", Limits()))
    assert ("--ro-bind", str(tmp_path)) in pairwise(words)


def test_nothing_of_the_environment_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "x")
    monkeypatch.setenv("LD_PRELOAD", "y")
    assert not {"A_SECRET", "LD_PRELOAD"} & sandbox.environment().keys()


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PYTHONPATH, as `pip install --target` leaves it."""
    folder = tmp_path / "added"
    (folder / "a_package_of_it-1.0.dist-info").mkdir(parents=True)
    (folder / "a_package_of_it.py").write_text("ONE = 1\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}relative{os.pathsep}")
    monkeypatch.syspath_prepend(folder)
    return folder


def shown(folder: Path) -> bool:
    return ("--ro-bind", str(folder)) in pairwise(sandbox._walls(None, Limits()))


@pytest.mark.skipif(not sandbox.bubblewrap()[0], reason="there are no walls here")
def test_packages_of_pythonpath_are_seen_and_cannot_be_changed(added: Path, tmp_path: Path) -> None:
    text = f"""import a_package_of_it
def f(x):
    try:
        open({str(added / "written")!r}, "w")
    except OSError:
        return x + a_package_of_it.ONE
"""
    own = tmp_path / "own" / "mine.py"
    own.parent.mkdir()
    own.write_text(text, encoding="utf-8")
    with CandidateProcess(own, "f", "cpu") as process:
        assert process.call((torch.zeros(2),)).tolist() == [1, 1]


def test_of_pythonpath_a_candidate_sees_folders_of_packages_alone(added: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(added)
    (added / "a_package_of_it-1.0.dist-info").rename(added / "notes")
    assert not shown(added)


def test_no_folder_that_others_write_to_that_is_worked_in_or_that_holds_a_copy(
    added: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added.chmod(0o777)
    assert not shown(added)
    added.chmod(0o755)
    (added / "work").mkdir()
    with monkeypatch.context() as there:
        there.chdir(added / "work")
        assert not shown(added)
    (added / "kernelmux").mkdir()
    assert not shown(added)
    (added / "kernelmux").rmdir()
    assert shown(added)
    monkeypatch.setattr(sandbox.Path, "home", lambda: added)
    assert not shown(added)


def test_a_link_shows_no_more_than_what_it_leads_to(
    added: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    link.symlink_to(added)
    monkeypatch.setenv("PYTHONPATH", str(link))
    assert shown(link)
    monkeypatch.setattr(sandbox.Path, "home", lambda: added)
    assert not shown(link)
