"""The generated pages are those of the specs and the records as they are, and hold what a reader looks for."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from kernelmux.conformance.report import artifacts
from kernelmux.conformance.verified import ledger
from kernelmux.docs import __main__ as docs
from kernelmux.docs import bazel_uses, index_page, ladder_tables, operator_page
from kernelmux.docs.families import FIRST, by_family
from kernelmux.perf.pictures.curves import PICTURED
from kernelmux.perf.record import history
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup
from kernelmux.registry.cli import terminal

SOFTMAX = catalog.spec("softmax")
TOP = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def made() -> dict[Path, str]:
    return docs.written_files()


def test_what_is_committed_is_what_is_generated(made: dict[Path, str]) -> None:
    wrong = [str(path.relative_to(docs.HOME.parent)) for path in docs.differing(made)]
    assert not wrong, f"run `nox -s docs`, which writes anew: {', '.join(wrong)}"


def test_every_operator_has_a_page_with_every_part(made: dict[Path, str]) -> None:
    for op in catalog.names():
        text, spec = made[docs.PAGES / f"{op}.md"], catalog.spec(op)
        assert spec.math in text and all(f"`{i.name}`" in text for i in spec.inputs)
        assert text.count("\n## ") == 6, op
        assert "torch_ref/" in text and "cuda/" in text and "triton/" in text
        assert f"({op}.md)" in made[docs.PAGES / "README.md"]
        curves = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
        recorded = list(operator_page.SWEEPS.glob(f"*/sweeps/{op}-*.csv"))
        assert len(curves) == len(recorded) * (op in PICTURED) and text.count("[as numbers]") == len(recorded)
        assert all((docs.PAGES / curve).exists() for curve in curves)


def test_bazel_learns_what_a_target_needs_from_specs_and_sources() -> None:
    assert "conv2d_backward_weight" in bazel_uses.gradients()["conv2d"]
    assert bazel_uses.read(TOP, "kernelmux/registry/ops")["swiglu"] == ["silu"]
    assert "matmul" in bazel_uses.read(TOP, "kernelmux/backends/cuda")["linear"]
    assert bazel_uses.owner(Path("_matmul_wgmma.py"), ["matmul", "matvec"]) == "matmul"
    assert bazel_uses.owner(Path("_rows.py"), ["softmax"]) == ""


def test_the_index_has_every_operator_under_the_family_of_its_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    found = by_family(catalog.names())
    assert list(found) == [*FIRST] and sum(map(len, found.values())) == len(catalog.names())
    assert "reduce_max" in found["Reductions"] and "add_rms_norm_backward" in found["Rows"]
    made = {"sort": "Orders", "fft": "Others", "matmul": "Products", "cut": "Orders"}
    monkeypatch.setattr(catalog, "spec", lambda op: replace(SOFTMAX, family=made[op]))
    assert by_family(made) == {"Products": ["matmul"], "Orders": ["sort", "cut"], "Others": ["fft"]}


def test_a_marker_is_filled_and_what_is_not_on_record_says_so() -> None:
    text = "before\n<!-- rungs softmax x=3x5 fp32 -->\nold\n<!-- /rungs -->\nafter\n"
    found = ladder_tables.filled(text)
    assert found.startswith("before\n<!-- rungs softmax x=3x5 fp32 -->\n`x=3x5` fp32 on ") and found.endswith("after\n")
    assert "old" not in found and "| cuda/naive | three passes, one element per access | not recorded |" in found
    assert '--op softmax --dtype fp32 --workload "x=3x5" --record' in found
    assert ladder_tables.filled(found) == found


def test_stale_rows_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "stale", lambda row: True)
    ladder_tables._rows.cache_clear()
    try:
        assert ", stale | " in "".join(operator_page._speeds("softmax"))
    finally:
        ladder_tables._rows.cache_clear()


def test_a_variant_without_a_record_is_nowhere_said_to_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "books", lambda: ())
    cells = [cell for row in rows(index_page.page(), "operator") for cell in row[1:-1] if cell != "-"]
    assert cells and all(variant.endswith(" no record") for cell in cells for variant in cell.split(", "))
    assert {row[-1] for row in rows(operator_page.page("softmax"), "variant")} == {"no record"}
    assert "no record |" in ledger.table(("softmax",)) and "✓ |" not in ledger.table(("softmax",))


@pytest.mark.parametrize(
    ("changed", "mark", "told"),
    [
        ({}, "✓", "on GPU A"),
        ({"spec": "another"}, "stale", "stale record, of GPU A"),
        ({"source": "another"}, "unknown", "before its last change, on GPU A"),
    ],
)
def test_a_record_counts_while_spec_and_source_are_as_they_were(
    changed: dict[str, str], mark: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = {"spec": catalog.spec("softmax").hash, "source": artifacts.source_hash("triton", "softmax")}
    entry = now | changed
    name = list(lookup.variants("triton", "softmax"))[-1]
    book = {"gpu": "GPU A", "entries": {f"softmax/triton/{name}": entry}}
    monkeypatch.setattr(ledger, "books", lambda: (book,))
    found = {row[0]: row[-1] for row in rows(operator_page.page("softmax"), "variant")}
    assert found.pop(f"triton/{name}") == told and set(found.values()) == {"no record"}
    assert f"{name} {mark}" in index_page.page()


def rows(page: str, first: str) -> list[list[str]]:
    """The cells of the tables of a page whose first column has that head, and whose last one is about records."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        head, _, *lines = (
            [cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in table.splitlines()
        )
        if head[0].strip() == first and head[-1].strip() in ("verified", "best, us"):
            found += lines
    return found


def test_a_check_says_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(docs, "HOME", tmp_path / "docs")
    monkeypatch.setattr(docs, "written_files", lambda: {tmp_path / "docs/operators/add.md": "text\n"})
    monkeypatch.setattr(docs, "PAGES", tmp_path / "docs/operators")
    (tmp_path / "docs/operators").mkdir(parents=True)
    (tmp_path / "docs/operators/gone.md").write_text("of an operator that was removed\n")
    assert docs.main(["--check"]) == 1 and "docs/operators/add.md" in capsys.readouterr().out
    assert docs.main(["--drawn", str(tmp_path / "drawn")]) == 0 and docs.main(["--check"]) == 0
    assert [path.name for path in (tmp_path / "docs/operators").iterdir()] == ["add.md"]
    others = {path.stem.split("-")[1] for path in (tmp_path / "drawn/curves").iterdir()}
    assert others and not others & {*PICTURED}


def test_without_what_draws_the_pictures_nothing_is_written(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(terminal.importlib.util, "find_spec", lambda name: None)
    assert docs.main([]) == terminal.USAGE
    assert capsys.readouterr().err == "docs: needs matplotlib: pip install matplotlib\n"
