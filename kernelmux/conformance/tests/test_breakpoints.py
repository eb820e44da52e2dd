"""Breakpoints of piecewise formulas: what a spec says of them, and that a branch elsewhere is found."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from kernelmux.conformance.checks import accuracy, gradient, special_values
from kernelmux.conformance.tests.trial_specs import failures, operator, registered_as
from kernelmux.conformance.variations import breakpoints
from kernelmux.registry.dtypes import FLOATS
from kernelmux.registry.errors import SpecError
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Composed, Index, OpSpec, Scalar, SpecialValues, Tensor

LARGEST = SpecialValues(undefined={"largest": "a product overflows on the way", "inf": "infinity times 0"})


def hardswish(x: torch.Tensor) -> torch.Tensor:
    return x * (x + 3).clamp(0, 6) / 6


def branch_at(point: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """hardswish whose upper branch begins elsewhere."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * (torch.where(wide < point, (wide + 3).clamp(min=0), 6) / 6)).to(x.dtype)

    return fn


TIGHT = ErrorModel(magnitude=lambda x: hardswish(x).abs(), flushes=True)
HARDSWISH = operator(
    "hardswish",
    (Tensor("x", "...", breakpoints=(-3.0, 3.0)),),
    hardswish,
    "x=1000",
    "x=7x33",
    error=TIGHT,
    special=LARGEST,
)


def test_a_right_branch_passes() -> None:
    assert failures(special_values.run, HARDSWISH, branch_at(3.0)) == []


@pytest.mark.parametrize("point", [2.5, 2.9999, 2.99998, 3.00002, 3.002, 5.0])
def test_a_branch_a_little_off_is_found_and_named(point: float) -> None:
    found = failures(special_values.run, HARDSWISH, branch_at(point))
    assert found and all("x around its breakpoint 3)" in text for text in found if "breakpoint" in text)
    assert any("wrong for x from " in text for text in found)


def test_without_breakpoints_it_passes() -> None:
    silent = operator("hardswish", (Tensor("x", "..."),), hardswish, "x=1000", error=TIGHT, special=LARGEST)
    assert failures(special_values.run, silent, branch_at(3.002)) == []
    assert failures(accuracy.run, silent, branch_at(3.002)) == []


def test_where_both_formulas_agree_within_the_bound_nothing_can_tell() -> None:
    assert failures(special_values.run, HARDSWISH, branch_at(3.000004)) == []


# --- the values ----------------------------------------------------------------------------------------------------


def around(point: float, dtype: torch.dtype) -> set[float]:
    turn = torch.arange(len(breakpoints.steps(dtype)))
    made = breakpoints.values(torch.full(turn.shape, point, dtype=torch.float64), turn, dtype)
    return set(made[made.isfinite()].tolist())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("point", [3.0, -3.0, 1.0, -0.5, 3.9999, 700.0])
def test_the_nearest_number_and_its_neighbours_are_there(point: float, dtype: torch.dtype) -> None:
    number = torch.tensor(point, dtype=dtype)
    wanted = set() if float(number) != point else {point}  # what fp32 does not hold is not asked
    for end in (math.inf, -math.inf):
        near = number
        for _ in range(breakpoints.NEIGHBOURS):
            near = torch.nextafter(near, torch.tensor(end, dtype=dtype))
            wanted.add(float(near))
    assert wanted <= around(point, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("point", [3.0, 0.0])
def test_whatever_a_branch_is_off_by_a_number_shows_it(point: float, dtype: torch.dtype) -> None:
    """On both sides no gap is wider than from d to 2 d; around 0, where there are as many for more sizes, to 2^7 d."""
    for side in (1, -1):
        distances = sorted(d for value in around(point, dtype) if (d := side * (value - point)) > 0)
        assert distances[-1] >= abs(point) or point == 0
        ratios = [far / near for near, far in pairwise(distances)]
        assert max(ratios) <= (2 if point else 2**7)


def test_a_number_that_fp32_does_not_hold_is_not_asked_itself() -> None:
    """A kernel compares with 0.1 in fp32, which is larger: on which side that number lies is not settled."""
    held = float(torch.tensor(0.1))
    assert held not in around(0.1, torch.float32) and held in around(held, torch.float32)


def test_each_value_stands_in_each_lane() -> None:
    with registered_as(HARDSWISH, branch_at(3.0)) as probe:
        for dtype in FLOATS:
            (base,) = breakpoints._bases(probe, HARDSWISH.tensors[0], dtype, 0)
            for trial in breakpoints.around(base, HARDSWISH.tensors[0]):
                lanes, x = 16 // dtype.itemsize, trial.tensors["x"]
                assert x.numel() % lanes  # some lie behind the last whole access
                every = set(x.tolist())
                assert all(set(x[lane::lanes].tolist()) == every for lane in range(lanes))


def test_a_small_tensor_is_asked_in_several_calls() -> None:
    item = HARDSWISH.tensors[0]
    with registered_as(HARDSWISH, branch_at(3.0)) as probe:
        base = probe.make(HARDSWISH.case("x=4x5"), torch.float32)
    found = {v for trial in breakpoints.around(base, item) for v in trial.tensors["x"].flatten().tolist()}
    assert found >= around(3.0, torch.float32) | around(-3.0, torch.float32)


# --- breakpoints that follow from arguments -----------------------------------------------------------------------


def shrunk(x: torch.Tensor, threshold: float) -> torch.Tensor:
    return torch.where(x.abs() > threshold, x, 0)


def held(number: float) -> float:
    """A scalar as kernels have it: in fp32."""
    return float(torch.tensor(number))


SHRUNK = operator(
    "shrunk",
    (
        Tensor("x", "M N", breakpoints=lambda a: (-a["threshold"], a["threshold"])),
        Scalar("threshold", float, 0.5, range=(0.1, 100.0)),
    ),
    shrunk,
    "x=40x33",
)


def test_a_jump_is_found_to_the_last_bit() -> None:
    assert (
        failures(special_values.run, SHRUNK, lambda x, threshold: shrunk(x.float(), held(threshold)).to(x.dtype)) == []
    )
    closed = failures(
        special_values.run, SHRUNK, lambda x, threshold: torch.where(x.float().abs() >= held(threshold), x, 0)
    )
    assert closed and "breakpoint -0.5)" in closed[0]


def test_a_branch_that_ignores_the_scalar_is_found() -> None:
    found = failures(special_values.run, SHRUNK, lambda x, threshold: shrunk(x, 0.5))
    assert found and "around its breakpoint" in found[0]


def smooth(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The smooth L1 loss."""
    d = (x - target).abs()
    return torch.where(d < 1, d * d / 2, d - 0.5)


def test_breakpoints_may_follow_another_tensor() -> None:
    beside = (
        Tensor("x", "...", breakpoints=lambda a: (a["target"] - 1, a["target"] + 1)),
        Tensor("target", "...", like="x"),
    )
    spec = operator("smooth", beside, smooth, "x=500 target=500", special=LARGEST)
    assert failures(special_values.run, spec, lambda x, target: smooth(x.float(), target.float()).to(x.dtype)) == []

    def broken(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        d = (x.float() - target.float()).abs()
        return torch.where(d < 1.1, d * d / 2, d - 0.5 + 0.01 * (d < 1.2)).to(x.dtype)

    found = failures(special_values.run, spec, broken)
    assert found and "x around its breakpoint number 1" in found[0]


# --- gradients ---------------------------------------------------------------------------------------------------


def differentiable(point: float) -> OpSpec:
    """hardswish whose gradient changes its formula there."""

    def steps(kx: Any, v: Any, g: Any) -> dict[str, torch.Tensor]:
        x = v["x"]
        return {"x": g["y"] * torch.where(x > point, 1.0, torch.where(x < -3, 0.0, x / 3 + 0.5))}

    return replace(HARDSWISH, gradient=Composed(("x",), steps))


def test_a_gradient_whose_branch_is_a_little_off_is_found() -> None:
    assert failures(gradient.run, differentiable(3.0), branch_at(3.0)) == []
    found = failures(gradient.run, differentiable(3.00001), branch_at(3.0))
    assert found and "x around its breakpoint 3)" in found[0]


# --- mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [3.0, ("3",), (math.inf,), [3.0], "3"])
def test_breakpoints_that_are_no_numbers_are_refused(given: Any) -> None:
    with pytest.raises(SpecError, match="x: breakpoints: expected a tuple of finite numbers, or a function"):
        operator("wrong", (Tensor("x", "...", breakpoints=given),), hardswish, "x=10")


@pytest.mark.parametrize("more", [{"domain": Index("N")}, {"dtypes": (torch.int32,)}])
def test_breakpoints_are_of_a_tensor_that_has_the_numbers(more: Any) -> None:
    with pytest.raises(SpecError, match="breakpoints: expected a floating tensor that may have"):
        operator("wrong", (Tensor("x", "N", breakpoints=(3.0,), **more),), hardswish, "x=10")


@pytest.mark.parametrize("given", [lambda a: 3.0, lambda a: ("three",), lambda a: (torch.ones(7),)])
def test_a_function_gives_numbers_or_tensors_that_fit(given: Any) -> None:
    spec: OpSpec = operator("wrong", (Tensor("x", "...", breakpoints=given),), hardswish, "x=10")
    with (
        registered_as(spec, branch_at(3.0)) as probe,
        pytest.raises(SpecError, match="x: breakpoints: expected numbers"),
    ):
        breakpoints.ask(probe)
