"""What a killed run leaves in the folder for temporary files: the next run removes it, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernelmux.conformance.cli import main
from kernelmux.conformance.session import leftovers

pytestmark = pytest.mark.skipif(not leftovers.fcntl, reason="this system has no locks that end with a process")

HOLD = """
import sys
from kernelmux.conformance.session import leftovers
with leftovers.folder() as path:
    (path / "plan.json").write_text("{}")
    print(path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def running(place: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process that has a folder, and where that is."""
    path = os.pathsep.join(filter(None, sys.path))
    told = {**os.environ, "TMPDIR": str(place), "PYTHONPATH": path}
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, env=told, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_the_folder_of_a_killed_run_is_removed_and_that_of_a_live_one_is_not(place: Path) -> None:
    with running(place) as (killed, left), running(place) as (_, live):
        killed.kill()
        killed.wait()
        assert left.is_dir() and live.is_dir() and left.parent == place
        leftovers.clear()
        assert not left.exists() and (live / "plan.json").read_text() == "{}"
        with leftovers.folder() as ours:
            leftovers.clear()
            assert ours.is_dir() and live.is_dir()
        assert not ours.exists()


def test_what_may_not_be_ours_stays(place: Path) -> None:
    other, linked = place / "other", place / f"{leftovers.PREFIX}link"
    other.mkdir()
    (other / leftovers.LOCK).touch()
    linked.symlink_to(other)
    (place / f"{leftovers.PREFIX}file").touch()
    (place / f"{leftovers.PREFIX}being-made").mkdir()
    before = sorted(place.rglob("*"))
    leftovers.clear()
    assert sorted(place.rglob("*")) == before


def test_a_run_removes_what_another_left(place: Path) -> None:
    left = place / f"{leftovers.PREFIX}left"
    left.mkdir()
    (left / leftovers.LOCK).touch()
    given = ["--op", "add", "--backend", "torch_ref/plain", "--check", "exact", "--tier", "smoke", "--device", "cpu"]
    assert main.main([*given, "-n", "1", "--out", str(place / "out")]) == main.OK
    assert [path.name for path in place.glob(f"{leftovers.PREFIX}*")] == []
