"""bazel/count_lines.py on a small repository: what is by hand and by programs, the limits, another commit."""

import importlib.util
import subprocess
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "bazel/count_lines.py"
WRITTEN = {
    "README.md": "a\nb\n",
    "kernelmux/perf/planning/plan.py": "a\n" * 20,
    "kernelmux/records/x1/perf.json": "{}\n",
    "docs/operators/add.md": "a\nb\nc\n",
    "docs/images/add.svg": "<svg>\n</svg>\n",
    "docs/add.md": "a\n",
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("count_lines", SCRIPT)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def top(tmp_path: Path) -> Path:
    for name, text in WRITTEN.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "docs/images/add.png").write_bytes(b"\x89PNG\n\xff\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    (tmp_path / "untracked.json").write_text("{}\n" * 99)
    return tmp_path


def git(top: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=top, check=True)


def test_lines_are_counted_by_folder_and_by_who_writes_them(
    script: ModuleType, top: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "MOST_SHARE", 0.25)
    assert script.main([], top) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [".", "2", "0"] in rows and ["docs", "1", "5"] in rows and ["all", "23", "6"] in rows
    assert ["kernelmux/perf", "20", "0"] in rows and ["kernelmux/records", "0", "1"] in rows


@pytest.mark.parametrize(("limit", "most"), [("MOST_LINES", 5), ("MOST_SHARE", 0.2)])
def test_beyond_a_limit_the_exit_status_is_1(
    script: ModuleType, top: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: float
) -> None:
    monkeypatch.setattr(script, "MOST_SHARE", 0.25)
    monkeypatch.setattr(script, limit, most)
    assert script.main([], top) == 1


def test_another_commit_is_counted_beside_the_files_as_they_lie(
    script: ModuleType, top: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (top / "docs/add.md").write_text("a\nb\nc\nd\n")
    (top / "docs/images/add.svg").unlink()
    assert script.main(["--at", "HEAD"], top) == 0
    told = capsys.readouterr().out
    assert "by hand +3, by programs -2" in told and told.count("by programs: ") == 2
    with pytest.raises(SystemExit, match=r"count_lines: git archive: .*nowhere"):
        script.main(["--at", "nowhere"], top)


def test_each_pattern_of_the_rule_matches_a_file_or_belongs_to_records(script: ModuleType) -> None:
    if not (SCRIPT.parents[1] / ".git").exists():
        pytest.skip("not in a checkout of git")
    names = [name for name, _ in script.tracked(SCRIPT.parents[1])]
    kept = Counter(p for p in script.BY_PROGRAMS for name in names if script.fnmatchcase(name, p))
    assert {p for p in script.BY_PROGRAMS if not kept[p]} <= {"*perf/results/*.md"}
