"""Generated shapes are legal, varied, reproducible, and inside what a variant declares."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelmux.conformance.checks import shapes
from kernelmux.conformance.inputs import generate
from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.options import Options
from kernelmux.conformance.variations import neighbouring_shapes
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.conditions import AtLeast, Dtypes, Multiple, OneOf
from kernelmux.registry.spec import Scalar


@pytest.mark.parametrize("op", catalog.names())
def test_generated_shapes_are_varied_and_small(op: str) -> None:
    found = [case for case, _ in generate.cases(catalog.spec(op), (), 20, 4096, 0)]
    assert len(found) == len({case.name for case in found}) == 20
    sizes = [max(len(shape) and max(shape) for shape in case.shapes.values()) for case in found]
    assert len(set(sizes)) > 4


def test_every_combination_of_forms_has_a_call() -> None:
    scales = {
        tuple(c.shapes[n] for n in ("a", "scale_a", "scale_b")) for c in generate.mixed(catalog.spec("fp8_matmul"))
    }
    assert ((24, 200), (24, 2), ()) in scales and ((24, 100), (), (1, 2)) in scales
    left_out = [c for c in generate.mixed(catalog.spec("int8_matmul")) if "scale_a" not in c.shapes]
    assert [c.shapes["scale_b"] for c in left_out] == [()]
    assert not list(generate.mixed(catalog.spec("softmax")))


def test_the_seed_decides() -> None:
    spec = catalog.spec("softmax")
    once, again, other = ([c.name for c, _ in generate.cases(spec, (), 8, 4096, seed)] for seed in (0, 0, 1))
    assert once == again != other


def test_conditions_narrow_the_axes() -> None:
    spec = catalog.spec("matmul")
    found = list(generate.cases(spec, (Multiple("K", 8), OneOf("N", 24), Dtypes("a", torch.float16)), 10, 4096, 0))
    assert len(found) == 10 and all(able in ([], [torch.float16]) for _, able in found)
    assert sum(bool(able) for _, able in found) >= 8
    assert all(c.shapes["a"][-1] % 8 == 0 and c.shapes["b"][-1] == 24 for c, able in found if able)


@pytest.mark.parametrize("op", catalog.names())
@pytest.mark.parametrize("seed", range(4))
def test_at_most_one_call_in_ten_computes_nothing(op: str, seed: int) -> None:
    found = [case for case, _ in generate.cases(catalog.spec(op), (), 10, 2**13, seed)]
    assert len(found) == 10
    assert sum(any(0 in shape for shape in case.shapes.values()) for case in found) <= 1


@pytest.mark.parametrize("seed", range(8))
def test_attention_is_drawn_causal_with_unusual_scales(seed: int) -> None:
    requires = (OneOf("D", 64, 128),)
    found = [case for case, able in generate.cases(catalog.spec("attention"), requires, 10, 2**13, seed) if able]
    causal = [c for c in found if c.scalars.get("causal") and all(0 not in shape for shape in c.shapes.values())]
    assert causal
    assert any(c.scalars.get("scale") is not None for c in found)


def test_numbers_are_drawn_from_the_trials_of_the_spec() -> None:
    found = [
        case.scalars["eps"]
        for case, _ in generate.cases(catalog.spec("rms_norm"), (), 60, 2**13, 0)
        if "eps" in case.scalars
    ]
    item = next(i for i in catalog.spec("rms_norm").scalars if i.name == "eps")
    assert isinstance(item, Scalar)
    assert set(found) <= set(generate.pool(item)) and {0.0, 1.0} <= set(found)


def test_a_pool_keeps_to_the_range_and_leaves_out_the_default() -> None:
    inside = generate.pool(Scalar("eps", float, 1e-6, range=(0.0, 1.0), trials=(0.0, 1e-6, 2.0)))
    assert 0.0 in inside and 1.0 in inside and 1e-6 not in inside and max(inside) <= 1.0
    free = generate.pool(Scalar("scale", float, 1.0, trials=(3.5,)))
    assert free[0] == 3.5 and 0.0 in free and min(free) < -1
    assert generate.pool(Scalar("causal", bool, False)) == [True]
    assert generate.pool(Scalar("precision", str, "ieee", choices=("ieee", "tf32"))) == ["tf32"]
    assert generate.pool(Scalar("column", int)) == []


def test_axes_are_equal_or_of_length_one_in_some_calls() -> None:
    shapes = [case.shapes["x"] for case, _ in generate.cases(catalog.spec("softmax"), (), 10, 2**13, 0)]
    assert any(len(s) > 1 and len(set(s)) == 1 for s in shapes)
    assert any(len(s) > 1 and 1 in s for s in shapes)


def test_corners_take_every_axis() -> None:
    found = generate.corners(catalog.spec("reduce_sum"))
    asked = {(len(c.shapes["x"]), c.scalars["axis"], c.scalars.get("keepdim", False)) for c in found}
    assert {(3, axis, keep) for axis in (0, 1, 2, None) for keep in (False, True)} <= asked
    assert {rank for rank, _, _ in asked} == {3, 4, 5}
    assert any(0 in c.shapes["x"] and c.scalars.get("keepdim") for c in found)
    assert [c.shapes["weight"][0] for c in generate.corners(catalog.spec("rms_norm"))] == [4, 3, 3, 5, 3]


def test_corners_leave_out_what_the_spec_refuses() -> None:
    spec = catalog.spec("reduce_max")
    found = generate.corners(spec)
    assert all(generate.permitted(spec, case, torch.float32) for case in found)
    assert any(0 in c.shapes["x"] for c in found)  # an axis of length 0 beside the reduced one


def test_corners_give_numbers_in_turn_and_every_choice() -> None:
    scales = [case.scalars.get("scale") for case in generate.corners(catalog.spec("softmax"))]
    assert None in scales and len(set(scales)) > 5
    gelu = [(len(c.shapes["x"]), c.scalars.get("approximate")) for c in generate.corners(catalog.spec("gelu"))]
    assert {(4, None), (4, "tanh"), (5, "tanh")} <= set(gelu)


def test_a_compact_call_has_no_axis_of_length_one_and_few_of_one_length() -> None:
    case = generate.compact(catalog.spec("attention"), (OneOf("D", 64, 128),))
    assert case is not None and case.shapes["q"][3] == 64
    (b, h, m, d), (_, g, n, _) = case.shapes["q"], case.shapes["k"]
    assert min(b, h, m, g, n) > 1 and h > g and len({b, h, m, d, g, n}) >= 5


def test_kinds_of_calls_differ_in_rank_and_in_the_place_of_the_axis() -> None:
    spec = catalog.spec("softmax")
    kinds = [
        generate.kind(spec, spec.case(text))
        for text in ("x=4x5", "x=7x9 axis=-1", "x=4x5 axis=0", "x=2x4x5 axis=1", "x=5")
    ]
    assert kinds[0] == kinds[1] and len(set(kinds)) == 4


def test_a_case_with_other_scalars_keeps_its_distribution() -> None:
    spec = catalog.spec("softmax")
    made = generate.with_scalars(spec.case("x=4x100 scale=2.0", inputs="wide"), {"scale": 0.0})
    assert made.text == "x=4x100 scale=0.0 inputs=wide" and spec.case(made.text).scalars["inputs"] == "wide"


class TwentyFour:
    """A condition that cases meet, and no shape that is drawn."""

    text = "C = 24"

    def check(self, call: Any) -> str | None:
        return None if call.axes["C"] == 24 else f"C is {call.axes['C']}"


@pytest.mark.parametrize("elements", [2**13, 2**22])
def test_a_variant_that_no_drawn_shape_fits_has_shapes_beside_its_cases(elements: int) -> None:
    spec = catalog.spec("conv2d_backward_weight")
    requires = (TwentyFour(),)
    asked = requires, shapes.COUNTS["smoke"], elements, 0
    assert not any(able for _, able in generate.cases(spec, *asked))
    found = neighbouring_shapes.cases(spec, *asked)
    assert found and all(able == generate.fitting(spec, requires, case) != [] for case, able in found)
    assert found == neighbouring_shapes.cases(spec, *asked) and len({case.name for case, _ in found}) == len(found)
    assert elements == 2**13 or len(found) == shapes.COUNTS["smoke"]
    assert neighbouring_shapes.cases(spec, (AtLeast("N", 10**9),), 3, elements, 0) == []


def test_the_check_asks_such_a_variant_something(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(Probe, "make", lambda probe, case, dtype: (case.name, dtype))
    monkeypatch.setattr(Probe, "able", lambda probe, trial: asked.append(trial))
    op = "conv2d_backward_weight"
    implementation = registered.variants("triton", op)["specialised"]
    shapes.run(Probe(catalog.spec(op), "shapes", "triton", "specialised", implementation, Options(tier="smoke")))
    assert asked
