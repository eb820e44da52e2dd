"""The page, JUnit XML and saved tensors of a run with a planted failure, and the runs that follow from it."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from pathlib import Path
from traceback import walk_tb as traceback_frames
from types import TracebackType
from xml.etree import ElementTree

import pytest
import torch

from kernelmux.conformance.cli import main
from kernelmux.conformance.failures import error_heatmap, failure_bundle

PLANTED = """
import torch

def softmax(x, axis, scale):
    y = torch.softmax(x.float() * scale, axis)
    if y.dim() and y.shape[-1] > 1:
        y[..., -1] *= 1.02
    return y.to(x.dtype).contiguous()
"""


def run(folder: Path, *words: str) -> tuple[int, str]:
    """Exit status and output of a run in this process."""
    given = ["--op", "softmax", "--tier", "smoke", "--device", "cpu", "-n", "1", "--out", str(folder), *words]
    with redirect_stdout(io.StringIO()) as told, redirect_stderr(told):
        status = main.main(given)
    return status, told.getvalue()


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run with a failing function beside torch's, and what the run has printed."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "mine.py").write_text(PLANTED)
    backends = ["--impl", f"{folder}/mine.py:softmax", "--backend", "impl", "torch_ref"]
    status, told = run(folder, *backends, "--check", "accuracy", "shapes", "--junit", str(folder / "junit.xml"))
    assert status == 1, told
    return folder, told


def test_the_page_leads_from_the_matrix_to_the_failing_case(failed: tuple[Path, str]) -> None:
    folder, told = failed
    page = (folder / "report-partial.html").read_text(encoding="utf-8")
    assert str(folder / "report-partial.html") in told
    HTMLParser().feed(page)
    for text in (
        'href="#softmax-impl/softmax-accuracy"',
        'id="softmax-impl/softmax-accuracy"',
        "rounding",
        "accumulation",
        "all at index 99 of axis 1",
        '<path class="level',
        "prefers-color-scheme: dark",
        "--impl",
        "impl, torch_ref on the CPU; not tested: cuda, triton",
        'title="softmax, impl: failed">✗',
        "softmax, torch_ref: passed",
    ):
        assert text in page, text
    assert "http://" not in page and "https://" not in page and "<script" not in page


def test_junit_has_a_case_for_each_item(failed: tuple[Path, str]) -> None:
    (suite,) = ElementTree.parse(failed[0] / "junit.xml").getroot()
    found = {(c.get("classname"), c.get("name")): [e.tag for e in c] for c in suite}
    assert found["softmax.impl", "softmax-accuracy"] == ["failure"]
    assert found["softmax.torch_ref", "exact-accuracy"] == []
    counted = str(len(list(suite.iter("testcase"))))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == (counted, "2", "0")
    (said,) = suite.iter("property")
    assert said.get("value") == "impl, torch_ref on the CPU; not tested: cuda, triton"


def test_the_tensors_of_a_failure_are_kept(failed: tuple[Path, str]) -> None:
    folder, told = failed
    home = folder / "failures/softmax-impl-softmax-accuracy"
    kept = failure_bundle.load(str(home))
    assert kept is not None and f"tensors: {home}" in told
    name, got, want, limit = kept
    wrong = (got - want).abs() > limit
    assert name == "y" and wrong[..., -1].all() and not wrong[..., :-1].any()
    assert "reproduce: python -m kernelmux.conformance" in (home / "finding.txt").read_text()


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04", b"\x80\x02.", b"\xff" * 100])
def test_tensors_of_a_failure_that_are_damaged_are_one_line(
    damage: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failure_bundle.load(str(tmp_path)) is None and capsys.readouterr().err == ""
    for stem in ("outputs", "expected", "bound"):
        torch.save(
            {"y": torch.zeros(2)} if stem != "outputs" else {"ours": {"y": torch.zeros(2)}}, tmp_path / f"{stem}.pt"
        )
    assert failure_bundle.load(str(tmp_path)) is not None
    (tmp_path / "expected.pt").write_bytes(damage)
    assert failure_bundle.load(str(tmp_path)) is None
    told = capsys.readouterr().err
    assert told.startswith(f"conformance: {tmp_path} is damaged: ") and told.count("\n") == 1


def test_last_failed_runs_what_failed_and_nothing_else(failed: tuple[Path, str]) -> None:
    folder, _ = failed
    mine = folder / "mine.py"
    mine.write_text(PLANTED.replace("1.02", "1.0"))
    status, told = run(folder, "--impl", f"{mine}:softmax", "--last-failed")
    assert status == 0 and "2 passed, 0 failed, 0 skipped" in told, told
    status, told = run(folder, "--impl", f"{mine}:softmax", "--last-failed")
    assert status == 2 and "nothing is known to fail" in told, told


def test_pdb_opens_where_a_trial_fails(
    failed: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[str]] = []

    def opened(traceback: TracebackType) -> None:
        frames = traceback_frames(traceback)
        seen.append({name for frame, _ in frames for name in frame.f_locals})

    monkeypatch.setattr("pdb.post_mortem", opened)
    (tmp_path / "mine.py").write_text(PLANTED)
    impl = f"{tmp_path}/mine.py:softmax"
    status, told = run(tmp_path, "--impl", impl, "--check", "accuracy", "--case", "x4x100", "--dtype", "fp32", "--pdb")
    assert status == 1 and len(seen) == 1 and {"got", "ref", "limit"} <= seen[0], told


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("nowhere.py:softmax", "no such file: nowhere.py"),
        ("mine.py:softmx", 'did you mean "softmax"?'),
        ("mine.py:other", "impl/other registered softmax(x, dim) but the spec is (x, axis, scale)"),
        ("mine.py", "expected path.py:function"),
        ("broken.py:softmax", "cannot be imported: ZeroDivisionError"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(
    word: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(f"{PLANTED}\ndef other(x, dim):\n    return x\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    status, said = run(tmp_path, "--impl", word)
    assert status == 2 and told in said and len(said.splitlines()) == 1, said


def test_a_bound_of_zero_has_no_terms(tmp_path: Path) -> None:
    """A maximum is exact."""
    text = "def reduce_max(x, axis, keepdim):\n    return x.amax(axis, keepdim) + 1\n"
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    given = ["--op", "reduce_max", "--impl", f"{tmp_path}/mine.py:reduce_max", "--check", "accuracy"]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        assert main.main([*given, "--tier", "smoke", "--device", "cpu", "--out", str(tmp_path)]) == main.FAILED
    assert "impl/reduce_max" in (tmp_path / "report-partial.html").read_text(encoding="utf-8")


def test_a_map_shows_the_worst_of_each_block() -> None:
    want = torch.zeros(3, 200, 300, dtype=torch.float64)
    got = want.clone()
    got[1, 199, 299], got[2, 0, 0] = 2.0, torch.nan
    made = error_heatmap.draw(got, want, torch.ones_like(want))
    assert made is not None and (made.rows, made.columns, made.each) == (50, 100, (4, 3))
    assert "the worst of 3" in made.over
    cells = error_heatmap._blocks(error_heatmap._share(got, want, torch.ones_like(want)).amax(0), made.each)
    assert cells[-1, -1] == 2.0 and cells[0, 0].isinf() and int((cells > 0).sum()) == 2
    assert set(made.paths) == {0, 4, 7} and made.paths[7] == "M0 0.5h1" and made.paths[4] == "M99 49.5h1"
    assert [error_heatmap.LEVELS[level][0] for level in (0, 4, 7)] == ["no error", "up to 10 times", "NaN or infinity"]
    assert error_heatmap.draw(torch.zeros(0), torch.zeros(0), torch.zeros(0)) is None
