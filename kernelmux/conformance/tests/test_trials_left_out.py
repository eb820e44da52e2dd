"""What the reports say of trials that a passed item did not ask."""

from __future__ import annotations

from kernelmux.conformance.judging.trial_outcome import Record
from kernelmux.conformance.report import trials_left_out
from kernelmux.conformance.session.execute import Outcome
from kernelmux.conformance.session.plan import Item

REASON = "the operator or the variant does not take such a shape"


def _outcome(variant: str, status: str, *skipped: str) -> Outcome:
    records = [Record("x4", "fp32", note, 0, "skipped", text=REASON) for note in skipped]
    ran = Record("x4", "fp32", "W = 65537", 0, assertions=1)
    return Outcome(Item("conv2d", "cuda", variant, "extent"), status, records=[ran, *records])


def test_a_passed_item_tells_what_it_left_out() -> None:
    found = [_outcome("direct", "passed", "R = 65537", "S = 65537"), _outcome("tiled", "passed", "R = 65537")]
    assert trials_left_out.lines(found) == [f"conv2d, extent, 2 variants: R = 65537, S = 65537: {REASON}"]
    assert trials_left_out.counted(found).startswith("3 trials of 2 passed items were not asked")
    assert REASON in trials_left_out.markdown(found)


def test_failed_and_whole_items_say_nothing() -> None:
    found = [_outcome("direct", "failed", "R = 65537"), _outcome("tiled", "passed")]
    assert trials_left_out.lines(found) == []
    assert trials_left_out.counted(found) == trials_left_out.markdown(found) == ""
