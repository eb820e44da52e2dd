"""Sizes around the constants of a source: which calls are made, with which inputs, and what is said of a failure."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernelmux.conformance.checks import thresholds
from kernelmux.conformance.inputs import edge_values, trials
from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.options import Options
from kernelmux.conformance.source_constants.constant import CONDITION, Constant, SourcePlace
from kernelmux.conformance.tests.trial_specs import AFFINE, PICKED, affine, failures, picked, registered_as
from kernelmux.conformance.variations import boundary_shapes, resize
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.conditions import AtMost, Multiple, OneOf
from kernelmux.registry.spec import OpSpec

HERE = SourcePlace(Path("mine.py"), 7, "if n > 1024")
LONG, MANY = 2500, 333


def constant(value: int, *names: str) -> Constant:
    return Constant(value, HERE, CONDITION, names=frozenset(names))


def long_rows(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The last column of long rows has no weight."""
    y = affine(x, weight, bias)
    if x.shape[-1] > LONG:
        y[..., -1] = x[..., -1]
    return y


def nan_at_the_edge(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Of rows of many columns a NaN is lost that stands where the next block begins."""
    if x.shape[-1] > LONG:
        x = x.clone()
        x[..., LONG] = x[..., LONG].nan_to_num(0.0, torch.inf, -torch.inf)
    return affine(x, weight, bias)


def few_rows_of_many_columns(x: torch.Tensor, target: torch.Tensor, ignore: int) -> torch.Tensor:
    y = picked(x, target, ignore)
    return y + 1 if x.shape[0] > MANY and x.shape[1] > MANY else y


@pytest.mark.parametrize(
    ("spec", "fn", "told"),
    [
        (AFFINE, long_rows, "N = 2501 = c + 1, c = 2500 of test_thresholds.py:33 `if x.shape[-1] > LONG`"),
        (AFFINE, nan_at_the_edge, "nan, inf, -inf, -0, subnormal in x: at the edges"),
        (PICKED, few_rows_of_many_columns, "V = 334, M = 334 = c + 1, c = 333 of test_thresholds.py:48"),
    ],
    ids=["one axis", "special number", "two axes"],
)
def test_a_fault_behind_a_size_is_found_and_its_place_is_told(spec: OpSpec, fn: object, told: str) -> None:
    found = failures(thresholds.run, spec, fn)  # type: ignore[arg-type]
    assert found and any(told in text for text in found), found[:1]


def test_what_is_right_passes_and_says_how_many_constants_were_asked() -> None:
    def sound(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return affine(x.clone() if x.shape[-1] > 1999 else x, weight, bias)

    with registered_as(AFFINE, sound) as probe:
        thresholds.run(probe)
    assert {r.status for r in probe.records} == {"passed"}
    (remark,) = probe.records[-1].remarks
    assert remark.startswith(tuple("123456789")) and "constants of the source were asked" in remark


def test_a_source_without_sizes_is_skipped_with_that_reason() -> None:
    with registered_as(AFFINE, affine) as probe:
        thresholds.run(probe)
    assert [(r.status, r.text) for r in probe.records] == [("skipped", "its source names no size")]


def test_the_printed_case_shows_the_failure_again() -> None:
    with registered_as(AFFINE, nan_at_the_edge) as probe:
        probe.options = Options(cases=("x=5x2501,weight=2501,bias=2501",), dtypes=("fp32",))
        thresholds.run(probe)
    assert [r.status for r in probe.records].count("failed") == 1 and len(probe.records) == 4


def test_every_axis_and_offset_is_there_the_most_telling_first() -> None:
    spec = catalog.spec("matmul")
    base = spec.case("a=5x3 b=3x7")
    made = boundary_shapes.calls(spec, [base], [constant(64, "k"), constant(100)])
    assert len(made) == 2 * 5 * (3 + 3 + 1)
    assert (made[0].constant.value, str(made[0].axes[0]), made[0].offset.text) == (64, "K", "c + 1")
    found = (boundary_shapes.permitted(spec, (), call, 2**16) for call in made)
    seen = {one[0].text for one in found if one}
    assert {"a=5x65 b=65x7", "a=65x65 b=65x65", "a=200x3 b=3x7", "a=5x3 b=3x63", "a=96x3 b=3x96"} <= seen


def test_conditions_decide_which_lengths_there_are() -> None:
    spec = catalog.spec("matmul")
    case = spec.case("a=8x8 b=8x8")
    axis = next(a for a in resize.axes(spec, case) if a.letter == "K")
    calls = [c for c in boundary_shapes.calls(spec, [case], [constant(100)]) if c.axes == (axis,)]
    lengths = {
        c.offset.text: made[2][axis]
        for c in calls
        if (made := boundary_shapes.permitted(spec, (Multiple("K", 8),), c, 2**16))
    }
    assert lengths == {"c + 1": 104, "c": 96, "2c": 200, "1.5c": 144, "c - 1": 96}
    assert not [c for c in calls if boundary_shapes.permitted(spec, (OneOf("K", 8, 16),), c, 2**16)]
    kept = [c.offset.text for c in calls if boundary_shapes.permitted(spec, (AtMost("K", 100),), c, 2**16)]
    assert kept == ["c", "c - 1"]


def test_axes_that_another_one_follows_grow_with_it() -> None:
    """The height of an output follows that of an image: alone neither may change."""
    spec = catalog.spec("conv2d")
    case = spec.case("x=2x3x7x5 weight=4x3x3x3 padding=1")
    axes = {a.letter: a for a in resize.axes(spec, case)}
    grown = boundary_shapes.BoundaryCall(constant(64), boundary_shapes.OFFSETS[0], (axes["H"],), case, 0.0)
    made = boundary_shapes.permitted(spec, (), grown, 2**16)
    assert made is not None and made[2][axes["H"]] == 65


def test_elements_are_counted_where_the_condition_does() -> None:
    spec = catalog.spec("softmax")
    base = spec.case("x=5x3 axis=-1")
    calls = boundary_shapes.calls(spec, [base], [constant(1000, "x", "numel")])
    made = boundary_shapes.permitted(spec, (), next(c for c in calls if len(c.axes) == 1), 2**16)
    assert made is not None and torch.Size(made[0].shapes["x"]).numel() in (1005, 1002)


def test_sizes_that_are_scalars_go_with_the_axes() -> None:
    """The width of a gradient alone is refused; with that of the image it is not."""
    spec = catalog.spec("max_pool2d_backward")
    case = spec.case("grad_out=2x3x3x4 index=2x3x3x4 size=12x20 kernel=2x3 stride=4x5")
    axes = {a.letter: a for a in resize.axes(spec, case)}
    grown = boundary_shapes.BoundaryCall(constant(200), boundary_shapes.OFFSETS[0], (axes["OW"],), case, 0.0)
    made = boundary_shapes.permitted(spec, (), grown, 2**17)
    assert made is not None and made[0].shapes["index"][-1] == 201 and made[0].scalars["size"][1] >= 1003


def test_elements_are_those_of_one_tensor() -> None:
    """`b.numel() > 4000` is no matter of the rows of the other matrix."""
    spec = catalog.spec("matmul")
    base = spec.case("a=5x64 b=64x3")
    calls = boundary_shapes.calls(spec, [base], [constant(4000, "b", "numel")])
    alone = [c for c in calls if len(c.axes) == 1 and c.offset.text == "c + 1"]
    made = {c.axes[0].letter: m[0].shapes for c in alone if (m := boundary_shapes.permitted(spec, (), c, 2**17))}
    assert {letter: torch.Size(made[letter]["b" if letter == "N" else "a"]).numel() for letter in "NM"} == {
        "N": 64 * 63,
        "M": 64 * 63,
    }


def test_large_and_special_numbers_stand_at_both_sides_of_an_edge() -> None:
    spec = catalog.spec("softmax")
    plain = trials.trial(spec, spec.case("x=40x100 axis=-1"), torch.float32, 0, torch.device("cpu"))
    assert edge_values.edges(100, 64) == [64, 99, 63, 0, 98] and edge_values.edges(64, 64) == [63, 0, 62]
    large = edge_values.large(plain, {"x": 1}, 64, 0, "N = 100")
    x, before = large.tensors["x"], plain.tensors["x"]
    assert set((x != before).nonzero()[:, 1].tolist()) == {0, 63, 64, 98, 99}
    assert bool((x[x != before].abs() > before.abs().max()).all()) and bool((x < before.min()).any())
    assert int((x != before).any(1).sum()) == 27  # every third line stays
    special = edge_values.special(plain, {"x": 1}, 64, 0, "N = 100", ("nan", "-inf"))
    assert special is not None
    changed = special.tensors["x"]
    assert int(changed.isnan().any(1).sum()) >= 13 and int(changed.isneginf().any(1).sum()) >= 13


@pytest.mark.parametrize(("backend", "op", "variant"), [("cuda", "softmax", "registers"), ("triton", "add", "blocked")])
def test_variants_of_ours_pass_in_tier_smoke(
    backend: str, op: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(thresholds.SECONDS, "smoke", 60.0)  # on a busy machine a call may take longer than usual
    if reason := registered.unavailable(backend, torch.device("cpu")):
        pytest.skip(reason)
    implementation = registered.variants(backend, op)[variant]
    probe = Probe(catalog.spec(op), "thresholds", backend, variant, implementation, Options(tier="smoke"))
    thresholds.run(probe)
    assert {r.status for r in probe.records} == {"passed"} and probe.records[0].note.count("c = ") == 1
