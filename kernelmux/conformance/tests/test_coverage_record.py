"""The record of blocks that the emulated suite leaves out: written without a GPU, read on one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelmux.conformance.cli import arguments
from kernelmux.conformance.coverage import collecting, record
from kernelmux.conformance.coverage.findings import BLOCK, BRANCH, CodePart, VariantCoverage
from kernelmux.conformance.options import Options
from kernelmux.conformance.report import not_reached
from kernelmux.conformance.session.execute import Outcome
from kernelmux.conformance.session.plan import Item
from kernelmux.conformance.verified import ledger
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.errors import ArgumentError, SpecError

OP, BACKEND = "square", "cuda"
PART = CodePart(BLOCK, "square.cu", 7, "`if (n > 1500) {`", "square", "square.cu:9")
BRANCH_PART = CodePart(BRANCH, "square.py", 3, "`if n`")
FULL = Options(tier="full", ops=(OP,), backends=(BACKEND,), device="cuda", coverage=True)


@pytest.fixture
def variant() -> record.Variant:
    return OP, BACKEND, next(iter(registered.variants(BACKEND, OP)))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "coverage.json"
    monkeypatch.setattr(record, "FILE", found)
    return found


def written(variant: record.Variant) -> tuple[int, list[str]]:
    coverage = VariantCoverage(blocks=(9, 10), unreached={PART, BRANCH_PART})
    return record.write({variant: coverage}, {"made_with": {"triton": "3"}})


def on_gpu(variant: record.Variant) -> Outcome:
    """An item that has run on a GPU, which says nothing of blocks."""
    row: dict[str, Any] = {"ways": {}, "functions": [], "lines": {}}
    return Outcome(Item(*variant, "accuracy"), "passed", machine={"gpu": "made up"}, coverage=row)


def failures(chosen: Options, outcomes: list[Outcome]) -> list[str]:
    return not_reached.failures(chosen, [o.item for o in outcomes], outcomes)


def recorded(chosen: Options, outcomes: list[Outcome]) -> str:
    return not_reached.recorded(chosen, [o.item for o in outcomes], outcomes)


def test_blocks_are_read_as_they_were_written_while_the_variant_launches_the_same(
    path: Path, variant: record.Variant
) -> None:
    assert record.unrun(variant) is None
    assert written(variant) == (1, []) and record.unrun(variant) == {PART}
    (row,) = [line for line in path.read_text().splitlines() if '"square.cu"' in line]
    assert json.loads(row.rstrip(","))["blocks"] == [9, 10]
    path.write_text(path.read_text().replace(record.launch_key(*variant), "another"))
    assert record.unrun(variant) is None


def test_rows_of_other_variants_stay_and_what_has_no_key_is_left_out(path: Path, variant: record.Variant) -> None:
    written(variant)
    unknown = (OP, BACKEND, "no_such_variant")
    assert record.write({unknown: VariantCoverage()}, {}) == (0, ["square/cuda/no_such_variant"])
    assert record.unrun(variant) == {PART}


def test_a_damaged_record_is_an_error(path: Path) -> None:
    for text in ("{", "[]", '{"schema": 9, "variants": []}', '{"schema": 1, "variants": [{}]}'):
        path.write_text(text)
        with pytest.raises(SpecError, match="expected a record of coverage"):
            record.read()


def test_a_run_on_a_gpu_in_tier_full_fails_by_what_is_on_record(path: Path, variant: record.Variant) -> None:
    outcomes = [on_gpu(variant)]
    assert failures(FULL, outcomes) == []
    assert not_reached.unrecorded(outcomes).startswith("/".join(variant))
    written(variant)
    assert failures(FULL, outcomes) == [f"{OP}, {BACKEND}: not reached: {PART}"]
    assert not_reached.unrecorded(outcomes) == ""


def test_what_is_recorded_is_a_whole_run_of_tier_ci(path: Path, variant: record.Variant) -> None:
    chosen = replace(FULL, tier="ci", device="cpu")
    kernel = {"key": "0" * 16, "name": "square", "blocks": 2, "ran": "0x1", "missing": [[1, ["square.cu", 7, "", 0]]]}
    row = {"ways": {}, "functions": [kernel], "lines": {"square": []}}
    outcome = Outcome(Item(*variant, "accuracy"), "passed", coverage=row)
    assert "kernels of 0 variants" in recorded(replace(chosen, checks=("accuracy",)), [outcome])
    failed = Outcome(Item(*variant, "exact"), "failed")
    said = recorded(chosen, [outcome, failed])
    assert "kernels of 0 variants" in said and f"not {OP}, {BACKEND}: expected all variants" in said
    assert "kernels of 0 variants" in not_reached.recorded(chosen, [outcome.item, failed.item], [outcome])  # stopped
    assert "kernels of 1 variants" in recorded(chosen, [outcome])
    (part,) = record.unrun(variant) or set()
    assert (part.file, part.line, part.kernel) == ("square.cu", 7, "square")


def test_a_record_without_a_gpu_is_of_coverage_alone() -> None:
    ledger.check_recordable(replace(FULL, device="cpu", tier="ci", ops=()), coverage=True)
    with pytest.raises(ArgumentError, match="expected tier ci, got full"):
        ledger.check_recordable(replace(FULL, device="cpu"), coverage=True)
    with pytest.raises(ArgumentError, match="needs all checks"):
        ledger.check_recordable(replace(FULL, device="cpu", tier="ci", checks=("exact",)), coverage=True)
    with pytest.raises(ArgumentError, match="add --device cuda"):
        ledger.check_recordable(replace(FULL, device="cpu", tier="ci"))


def test_lines_that_a_compiler_has_kept_from_another_checkout_are_those_of_this_one(tmp_path: Path) -> None:
    (tmp_path / "_rows").mkdir()
    (tmp_path / "_rows/rows.py").touch()
    for file, told in {
        str(tmp_path / "_rows/rows.py"): "_rows/rows.py",
        "/elsewhere/kernelmux/backends/triton/_rows/rows.py": "_rows/rows.py",
        "_rows/rows.py": "_rows/rows.py",
        "/site-packages/triton/language/standard.py": "standard.py",
    }.items():
        assert collecting._inside(file, tmp_path) == told


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["--tier", "ci"], False),
        (["--tier", "ci", "--coverage"], True),
        (["--tier", "full"], False),
        (["--tier", "full", "--coverage"], True),
        (["--coverage", "--mutants"], False),
    ],
)
def test_which_runs_ask_for_coverage(words: list[str], asked: bool) -> None:
    args = arguments.parser().parse_args([*words, "--op", OP, "--device", "cpu"])
    assert arguments.options_of(args).coverage == asked


def test_what_another_variant_of_the_run_has_reached_is_not_on_record(path: Path, variant: record.Variant) -> None:
    """A GPU fails by what is on record, and not by what another variant runs."""
    chosen = replace(FULL, tier="ci", device="cpu")
    place = ["square.cu", 7, "", 0]
    kernel = {"key": "0" * 16, "name": "square", "blocks": 2, "ran": "0x1", "missing": [[1, place]]}
    first = Outcome(
        Item(*variant, "accuracy"), "passed", coverage={"ways": {}, "functions": [kernel], "lines": {"square": []}}
    )
    row = {"ways": {}, "functions": [{**kernel, "ran": "0x3", "missing": []}], "lines": {"square": [place]}}
    other = Outcome(Item(OP, BACKEND, "other", "accuracy"), "passed", coverage=row)
    recorded(chosen, [first])
    assert len(record.unrun(variant) or ()) == 1
    recorded(chosen, [first, other])
    assert record.unrun(variant) == set()


def test_what_a_later_run_has_reached_is_struck_from_the_record(path: Path, variant: record.Variant) -> None:
    written(variant)
    name = ("gelu", BACKEND, next(iter(registered.variants(BACKEND, "gelu"))))
    record.write({("gelu", "triton", "no_such_variant"): VariantCoverage(reached={PART})}, {})
    assert record.unrun(variant) == {PART}
    record.write({name: VariantCoverage(reached={PART})}, {})
    assert record.unrun(variant) == set()
