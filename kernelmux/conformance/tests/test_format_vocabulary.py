"""What a spec can say of its scalars and dtypes: several numbers in one argument, dtypes that go together."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelmux.conformance.checks import accuracy, shapes
from kernelmux.conformance.inputs import generate
from kernelmux.conformance.tests.trial_specs import PICKED, SINGLE, failures, operator
from kernelmux.registry.cli import type_stubs
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.numerics import EQUAL, ErrorModel
from kernelmux.registry.spec import Call, Output, Scalar, Tensor, cases, numerics
from kernelmux.registry.spec.docstrings import documentation

# --- scalars of several numbers -----------------------------------------------------------------------------------


def strided(x: torch.Tensor, stride: tuple[int, int]) -> torch.Tensor:
    return x[:: stride[0], :: stride[1]].clone()


def _kept(call: Call) -> tuple[int, ...]:
    return tuple(-(-n // s) for n, s in zip(call.arguments["x"].shape, call.arguments["stride"], strict=True))


STRIDED = operator(
    "strided",
    (Tensor("x", "M N", dtypes=SINGLE), Scalar("stride", int, 1, range=(1, 1000), length=2, trials=(2, 3))),
    strided,
    "x=9x10",
    "x=40x50 stride=2x2",
    outputs=(Output("y", like="x", dims=_kept),),
    error=EQUAL,
)


@pytest.mark.parametrize(("given", "seen"), [(2, (2, 2)), ((2, 3), (2, 3)), ([3, 1], (3, 1))])
def test_one_number_stands_for_several(given: Any, seen: tuple[int, int]) -> None:
    assert STRIDED.bind(torch.ones(4, 5), given).arguments["stride"] == seen


@pytest.mark.parametrize("given", [(1, 2, 3), (1,), [1, 2.5], (0, 1), "2,3", 1.5])
def test_wrong_numbers_are_refused(given: Any) -> None:
    with pytest.raises(ArgumentError, match="strided: stride: expected "):
        STRIDED.bind(torch.ones(4, 5), given)


@pytest.mark.parametrize("text", ["x=9x10 stride=2x3", "x=9x10,stride=2x3", "stride=2x3, x=9x10"])
def test_a_case_spells_them_as_a_shape(text: str) -> None:
    case = STRIDED.case(text)
    assert case.shapes == {"x": (9, 10)} and case.scalars == {"stride": (2, 3)}
    assert generate.with_scalars(case, {}).scalars == {"stride": (2, 3)}


def test_no_other_scalar_has_several() -> None:
    with pytest.raises(ArgumentError, match="ignore: expected a number"):
        _ = PICKED.case("x=4x5 target=4 ignore=2x3").scalars


def test_the_public_face_takes_one_or_several() -> None:
    assert "stride: int | tuple[int, int] = 1" in type_stubs._function(STRIDED)
    assert "stride: int, or 2 of them" in documentation(STRIDED)


def test_a_kernel_that_takes_the_first_number_for_both_is_caught() -> None:
    """The cases of the spec have one number for both axes: only generated calls have two."""
    assert failures(shapes.run, STRIDED, strided) == []
    assert failures(accuracy.run, STRIDED, lambda x, stride: strided(x, stride[:1] * 2)) == []
    assert failures(shapes.run, STRIDED, lambda x, stride: strided(x, stride[:1] * 2))


# --- dtypes that go together ------------------------------------------------------------------------------------

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def scaled_product(a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (a.to(torch.float64) @ b.to(torch.float64) * scale).to(torch.float64)


FP8 = operator(
    "fp8",
    (
        Tensor("a", "M K", dtypes=(E4M3, E5M2)),
        Tensor("b", "K N", dtypes=(E4M3, E5M2)),
        Tensor("scale", "", dtypes=SINGLE),
    ),
    scaled_product,
    "a=16x32 b=32x16 scale=scalar",
    outputs=(Output("c", like="a", dims="M N", dtype=torch.bfloat16),),
    error=ErrorModel(magnitude=lambda a, b, scale: a.abs() @ b.abs() * scale.abs(), terms=lambda axes: axes["K"]),
    arithmetics=("fp32", "mma"),
    formats=({"a": E4M3, "b": E4M3}, {"a": E4M3, "b": E5M2}, {"a": E5M2, "b": E4M3}),
)


def rounded(a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return scaled_product(a, b, scale).to(torch.bfloat16)


def test_dtypes_that_do_not_go_together_are_refused() -> None:
    a, b = torch.ones(2, 3).to(E5M2), torch.ones(3, 4).to(E5M2)
    assert FP8.bind(a, b.to(E4M3), torch.ones(())).dtype == E5M2
    with pytest.raises(ArgumentError, match=r"expected dtypes a e4m3, b e4m3 or .*, got a e5m2, b e5m2"):
        FP8.bind(a, b, torch.ones(()))


def test_the_other_dtypes_of_a_call_go_with_the_leading_one() -> None:
    assert FP8.dtypes_for(E5M2) == {"a": E5M2, "b": E4M3, "scale": torch.float32}
    assert FP8.dtypes_for(E4M3, {"b": E5M2}) == {"a": E4M3, "b": E5M2, "scale": torch.float32}


def test_the_arithmetic_of_a_tensor_core_follows_the_dtype() -> None:
    names = [numerics.arithmetic("mma", d, {}).name for d in (torch.bfloat16, torch.float32, E4M3, E5M2, torch.int8)]
    assert names == ["mma", "fp32_sequential", "fp8_mma", "fp8_mma", "int32"]


def test_generated_calls_have_every_combination_and_a_kernel_that_knows_one_is_caught() -> None:
    """It takes b for what a is: right where both are of one format, as in the cases of the spec."""
    made = {tuple(case.parsed[2].values()) for case, _ in generate.cases(FP8, (), 20, 2**13, 0)}
    assert made == {(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3)}
    assert failures(shapes.run, FP8, rounded) == []
    assert failures(shapes.run, FP8, lambda a, b, scale: rounded(a, b.view(torch.uint8).view(a.dtype), scale))


def test_integers_that_a_short_format_holds_add_up_in_a_longer_one() -> None:
    assert cases.exact_range(64, E4M3, products=True) == 0
    assert cases.exact_range(64, torch.bfloat16, products=True, inputs=E4M3) == 2
    assert cases.exact_range(1, torch.bfloat16, inputs=E4M3) == 16
