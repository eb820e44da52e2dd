"""Axes that may grow, memory that takes no room, cases with other lengths."""

from __future__ import annotations

import resource

import pytest
import torch

from kernelmux.candidate.allocations import TooLarge, Virtual
from kernelmux.conformance.checks import offsets
from kernelmux.conformance.options import Options
from kernelmux.conformance.session.execute import execute
from kernelmux.conformance.session.plan import Item
from kernelmux.conformance.variations import large_tensors, resize
from kernelmux.conformance.variations.large_tensors import FAR
from kernelmux.conformance.variations.resize import AxisName
from kernelmux.registry import catalog

ROWS, MIDDLE = AxisName("...", 0), AxisName("...", 1)


def _independent(op: str, text: str, dtype: torch.dtype = torch.float32) -> dict[AxisName, dict[int, int]]:
    spec = catalog.spec(op)
    case = spec.case(text)
    found = {axis: large_tensors.independent(spec, case, axis, dtype) for axis in resize.axes(spec, case)}
    return {axis: dimensions for axis, dimensions in found.items() if dimensions}


def test_independent_axes_are_found_by_asking_the_reference() -> None:
    assert _independent("softmax", "x=3x4x5 axis=1") == {ROWS: {0: 0}, AxisName("...", 2): {0: 2}}
    assert _independent("reduce_sum", "x=3x4x5 axis=1") == {ROWS: {0: 0}, AxisName("...", 2): {0: 1}}
    assert _independent("matmul", "a=3x4 b=4x5") == {AxisName("M"): {0: 0}, AxisName("N"): {0: 1}}
    backward = _independent("rms_norm_backward", "grad_out=3x4 x=3x4 weight=4")
    assert backward == {ROWS: {0: 0}}  # grad_x alone: every row adds to grad_weight
    attention = _independent("attention", "q=1x2x3x8 k=1x2x5x8 v=1x2x5x8", torch.float16)
    assert AxisName("B") in attention and AxisName("M") in attention and AxisName("N") not in attention
    causal = _independent("attention", "q=1x2x3x8 k=1x2x5x8 v=1x2x5x8 causal=True", torch.float16)
    assert AxisName("M") not in causal or AxisName("N") not in causal


def test_slices_of_a_batch_stand_apart_and_rows_under_a_causal_mask_do_not() -> None:
    spec = catalog.spec("attention")
    case = spec.case("q=1x2x3x8 k=1x2x5x8 v=1x2x5x8 causal=True")
    assert set(large_tensors.apart(spec, case, [AxisName("B")], torch.float16)) == {0, 1}
    assert large_tensors.apart(spec, case, [AxisName("M")], torch.float16) == {}


def test_lengths_reach_2_to_the_31_elements_in_every_tensor() -> None:
    spec = catalog.spec("matmul")
    found = large_tensors.lengths(spec, spec.case("a=30x40 b=40x50"), torch.float16)
    assert {axis.letter for axis in found} == {"M", "N"}
    assert found[AxisName("M")][0] * 40 > FAR and found[AxisName("M")][0] % 30 == 0
    assert found[AxisName("N")][0] * 40 > FAR and found[AxisName("N")][0] % 50 == 0


def test_virtual_memory_takes_no_room() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Virtual():
        x = torch.empty(FAR + 100, 2, dtype=torch.float16)
        x[-1].fill_(3)
        assert x[-1].tolist() == [3, 3] and x[0].tolist() == [0, 0]
        with pytest.raises(TooLarge, match=r"torch computes aten.mul.Tensor on"):
            x * 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_a_loop_over_virtual_memory_ends() -> None:
    with Virtual():
        x = torch.empty(FAR + 100, 2, dtype=torch.float16)
        with pytest.raises(TooLarge, match="in all"):
            for start in range(0, len(x), 7):
                x[start : start + 7].add_(1)
        with pytest.raises(TooLarge, match="into pieces"):
            x.split(7)


def test_cases_with_other_lengths_keep_what_belongs_together() -> None:
    spec = catalog.spec("rms_norm")
    case = resize.resized(spec, spec.case("x=3x5x65 weight=65 eps=1e-5"), {AxisName("N"): 7, MIDDLE: 1})
    assert case.shapes == {"x": (3, 1, 7), "weight": (7,)} and case.scalars == {"eps": 1e-5}


@pytest.mark.filterwarnings("ignore::kernelmux.registry.errors.EmulationWarning")
def test_what_reads_an_earlier_launch_is_not_judged_by_a_few_blocks() -> None:
    """The last blocks of a product read a matrix of which the last blocks of a copy wrote the end alone."""
    chosen = Options(tier="ci", cases=("a1x65-b65x1",), dtypes=("fp16",))
    outcome = execute(Item("matmul", "cuda", "wgmma", "offsets"), chosen)
    told = [record.text for record in outcome.records if "2^31" in record.note]
    assert outcome.status == "passed" and any(offsets.UNREAD in text for text in told)
