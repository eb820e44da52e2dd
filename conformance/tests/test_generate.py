"""Generated shapes are legal, varied, reproducible, and inside what a variant declares."""

from __future__ import annotations

import pytest
import torch

from kernelmux.conformance import generate
from kernelmux.registry import catalog
from kernelmux.registry.cases import Case
from kernelmux.registry.conditions import Dtypes, Multiple, OneOf
from kernelmux.registry.spec import Scalar


@pytest.mark.parametrize("op", catalog.names())
def test_generated_shapes_are_varied_and_small(op: str) -> None:
    found = [case for case, _ in generate.cases(catalog.spec(op), (), 20, 4096, 0)]
    assert len(found) == len({case.name for case in found}) == 20
    sizes = [max(len(shape) and max(shape) for shape in case.shapes.values()) for case in found]
    assert len(set(sizes)) > 4


def test_the_seed_decides() -> None:
    spec = catalog.spec("softmax")
    once, again, other = ([c.name for c, _ in generate.cases(spec, (), 8, 4096, seed)] for seed in (0, 0, 1))
    assert once == again != other


def test_conditions_narrow_the_axes() -> None:
    spec = catalog.spec("matmul")
    found = list(generate.cases(spec, (Multiple("K", 8), OneOf("N", 24), Dtypes("a", torch.float16)), 10, 4096, 0))
    assert len(found) == 10 and all(able in ([], [torch.float16]) for _, able in found)
    assert sum(bool(able) for _, able in found) >= 8
    assert all(c.shapes["a"][1] % 8 == 0 and c.shapes["b"][1] == 24 for c, able in found if able)


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
    found = [case.scalars["eps"] for case, _ in generate.cases(catalog.spec("rms_norm"), (), 60, 2**13, 0)
             if "eps" in case.scalars]  # fmt: skip
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
    texts = [case.text for case in generate.corners(catalog.spec("reduce_sum"))]
    assert texts == [f"x={shape} axis={axis}" for shape in ("4x4x4", "2x1x3", "2x0x3") for axis in range(3)]
    assert [case.shapes["weight"] for case in generate.corners(catalog.spec("rms_norm"))] == [(4,), (3,), (3,)]


def test_a_case_with_other_scalars_keeps_its_distribution() -> None:
    made = generate.with_scalars(Case("x=4x100 scale=2.0", inputs="wide"), {"scale": 0.0})
    assert made.text == "x=4x100 scale=0.0 inputs=wide" and Case(made.text).scalars["inputs"] == "wide"
