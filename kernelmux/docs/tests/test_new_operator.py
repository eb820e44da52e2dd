"""docs/new_operator.md, typed in by a machine, and the operators of all families as `kernelmux new op` writes them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernelmux.registry.cli import main
from kernelmux.registry.scaffold import command

PAGE = (Path(__file__).parents[3] / "docs/new_operator.md").read_text(encoding="utf-8")
DIFFS = re.findall(r"`(our_ops/\S+)`:\n\n```diff\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def run(folder: Path, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)


def left(project: Path, name: str) -> subprocess.CompletedProcess[str]:
    """The test of a written package that says what is left to fill in."""
    return run(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "left", f"tests/test_{name}.py")


def typed_in(text: str, diff: str) -> str:
    """A file with each run of lines that a diff takes away replaced by the lines that it adds there."""
    for old, new in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)*)", diff, re.MULTILINE):
        gone, come = (re.sub(r"^[-+]", "", lines, flags=re.MULTILINE) for lines in (old, new))
        assert text.count(gone) == 1, gone
        text = text.replace(gone, come)
    return text


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the page, filled in, with an operator of each family as it is written."""
    folder = tmp_path_factory.mktemp("new") / "our_ops"
    for name, like in (("softplus", "relu"), *((f"as_{like}", like) for like in command.LIKE)):
        assert main.main(["new", "op", name, "--like", like, "--package", str(folder)]) == 0
    for name, diff in DIFFS:
        path = folder / name
        path.write_text(typed_in(path.read_text(encoding="utf-8"), diff), encoding="utf-8")
    return folder


def test_the_page_shows_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["new", "op", "softplus", "--like", "relu", "--package", "our_ops"]) == 0
    (shown,) = re.findall(r"^```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert capsys.readouterr().out.replace(f"{tmp_path}{os.sep}", "") == shown


@pytest.mark.parametrize("like", command.LIKE)
def test_a_written_operator_names_every_place_to_fill_in(project: Path, like: str) -> None:
    told = left(project, f"as_{like}")
    assert told.returncode == 1, told.stdout
    name = f"as_{like}"
    sources = [p for p in project.rglob(f"{name}.*") if p.suffix in {".py", ".cu"}]
    marks = [
        f"{path.relative_to(project)}:{number}:"
        for path in sources
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if f"TODO({name})" in line
    ]
    assert len(marks) >= 10 and not [mark for mark in marks if mark not in told.stdout]


def test_what_the_page_fills_in_is_all_there_is(project: Path) -> None:
    assert len(DIFFS) == 4 and left(project, "softplus").returncode == 0
    by_hand = sum(line.startswith("+") for _, diff in DIFFS for line in diff.splitlines())
    assert f": {by_hand} lines by hand" in PAGE and by_hand <= 60


def test_all_families_pass_the_suite_as_they_are_written(project: Path, tmp_path: Path) -> None:
    pytest.importorskip("pip", reason="the package is installed by pip")
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(tmp_path / "site"))
    told = run(tmp_path, "-m", "pip", "install", *options, str(project))
    assert told.returncode == 0, told.stderr
    path = os.pathsep.join((str(tmp_path / "site"), *(path for path in sys.path if path)))
    names = ("softplus", *(f"as_{like}" for like in command.LIKE))
    asked = ("--op", *names, "--tier", "smoke", "--check", "accuracy", "layout", "gradients", "--device", "cpu")
    told = run(tmp_path, "-m", "kernelmux.conformance", *asked, "-n", "1", path=path)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "0 failed" in told.stdout and all(name in told.stdout for name in names)
