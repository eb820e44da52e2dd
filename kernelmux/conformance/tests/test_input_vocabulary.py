"""What a spec can say of its inputs: optional tensors, alternatives of shape, the values that they have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernelmux.conformance.checks import accuracy, layout, memory, repeatability, shapes, special_values, state
from kernelmux.conformance.inputs import generate, trials
from kernelmux.conformance.tests.trial_specs import (
    AFFINE,
    PICKED,
    SINGLE,
    WEIGHTS,
    affine,
    failures,
    operator,
    picked,
    registered_as,
    weights,
)
from kernelmux.registry import catalog
from kernelmux.registry.call.dispatch import _key_of
from kernelmux.registry.cli import type_stubs
from kernelmux.registry.errors import ArgumentError, SpecError
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Computed, Index, OpSpec, Output, Positive, Real, Tensor
from kernelmux.registry.spec.docstrings import documentation

EVERYWHERE = (layout, memory, repeatability, shapes, special_values, state)


@pytest.mark.parametrize("check", EVERYWHERE)
@pytest.mark.parametrize(
    ("spec", "fn"),
    [
        (AFFINE, affine),
        (PICKED, picked),
        (WEIGHTS, lambda x, lse: torch.exp(x - lse[:, None])),
    ],
)
def test_every_check_copes_with_the_vocabulary(check: Any, spec: OpSpec, fn: Any) -> None:
    assert failures(check.run, spec, fn) == []


# --- optional tensors -------------------------------------------------------------------------------------------


def test_an_optional_tensor_may_be_left_out_or_none() -> None:
    x, weight = torch.ones(2, 3), torch.ones(3)
    assert AFFINE.bind(x, weight).arguments["bias"] is None
    assert list(AFFINE.bind(x, weight, None).tensors) == ["x", "weight"]
    assert list(AFFINE.bind(x, weight, weight).tensors) == ["x", "weight", "bias"]


@pytest.mark.parametrize(
    ("bias", "says"),
    [
        (1.0, r"bias: expected a torch.Tensor \[N\] or None, got float"),
        (torch.ones(3, dtype=torch.float16), "bias: expected dtype fp32 like x, got fp16"),
        (torch.ones(4), "axis N is 3 from x"),
    ],
)
def test_a_wrong_optional_tensor_is_refused(bias: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        AFFINE.bind(torch.ones(2, 3), torch.ones(3), bias)


@pytest.mark.parametrize("text", ["x=2x3 weight=3", "x=2x3 weight=3 bias=none"])
def test_a_case_leaves_an_optional_tensor_out_or_says_none(text: str) -> None:
    case = AFFINE.case(text)
    assert list(case.shapes) == ["x", "weight"]
    assert AFFINE.hypothetical(case).arguments["bias"] is None
    assert trials.values(AFFINE, case, trials.drawn(AFFINE, case, torch.float32, 0), torch.device("cpu"))[2] is None


def test_none_is_no_shape_of_a_tensor_that_is_needed() -> None:
    with pytest.raises(ArgumentError, match="weight: expected lengths such as 4x1000"):
        _ = AFFINE.case("x=2x3 weight=none").shapes


def test_the_public_face_says_that_it_is_optional() -> None:
    assert str(AFFINE.signature) == "(x, weight, bias=None)"
    assert "bias: [N] like x or None; added at the end" in documentation(AFFINE)
    assert "bias: Tensor | None = None, *" in type_stubs._function(AFFINE)


def test_calls_with_and_without_it_are_remembered_apart() -> None:
    key, x, weight = _key_of(AFFINE), torch.ones(2, 3), torch.ones(3)
    keys = {key(x, weight, bias, None, ()) for bias in (None, weight, torch.ones(6)[::2])}
    assert len(keys) == 3


def test_generated_calls_have_it_and_do_not() -> None:
    made = [case.shapes for case, _ in generate.cases(AFFINE, (), 20, 2**13, 0)]
    assert {"bias" in found for found in made} == {True, False}


def test_a_kernel_that_adds_something_where_nothing_was_given_is_caught() -> None:
    """The cases of the spec always give one: only generated calls leave it out."""

    def broken(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return x * weight + (weight if bias is None else bias)

    assert failures(shapes.run, AFFINE, broken)


def test_an_output_is_not_like_a_tensor_that_may_be_missing() -> None:
    with pytest.raises(SpecError, match="y: expected like= a tensor that is not optional, got bias"):
        replace(AFFINE, outputs=(Output("y", like="bias"),))


# --- alternatives of shape ----------------------------------------------------------------------------------------


def scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x * scale


def _scaled(dims: str) -> OpSpec:
    inputs = (Tensor("x", "B M K", dtypes=SINGLE), Tensor("scale", dims, dtypes=SINGLE))
    return operator("scaled", inputs, scaled, "x=3x4x5 scale=4x5", "x=3x40x50 scale=40x50")


SCALED = _scaled("M K | B M K")


@pytest.mark.parametrize("shape", [(4, 5), (3, 4, 5)])
def test_a_tensor_has_one_of_several_shapes(shape: tuple[int, ...]) -> None:
    call = SCALED.bind(torch.ones(3, 4, 5), torch.ones(shape))
    assert call.axes == {"B": 3, "M": 4, "K": 5}


@pytest.mark.parametrize(("shape", "axis"), [((5,), ""), ((4, 6), "axis K is 5"), ((2, 4, 5), "axis B is 3")])
def test_an_error_names_every_alternative(shape: tuple[int, ...], axis: str) -> None:
    with pytest.raises(ArgumentError) as error:
        SCALED.bind(torch.ones(3, 4, 5), torch.ones(shape))
    assert f"scale: expected shape [M K] or [B M K], got {list(shape)}" in str(error.value) and axis in str(error.value)


@pytest.mark.parametrize(
    ("shape", "named"), [((), ()), ((4, 1), ("M", "1")), ((4, 7), ("M", "G")), ((1, 1), ("M", "1"))]
)
def test_numbers_are_lengths_and_nothing_is_a_single_number(shape: tuple[int, ...], named: tuple[str, ...]) -> None:
    assert Tensor("scale", "| M 1 | M G").named(shape) == named


def test_a_form_that_contradicts_the_axes_gives_way_to_the_next() -> None:
    either = _scaled("M 1 | 1 K")
    assert either.bind(torch.ones(2, 4, 5), torch.ones(4, 1)).axes == {"B": 2, "M": 4, "K": 5}
    assert either.bind(torch.ones(2, 4, 1), torch.ones(1, 1)).axes == {"B": 2, "M": 4, "K": 1}
    with pytest.raises(ArgumentError, match=r"expected shape \[M 1\] or \[1 K\], got \[3, 1\]"):
        either.bind(torch.ones(2, 4, 5), torch.ones(3, 1))


def test_a_kernel_that_knows_one_of_the_shapes_is_caught() -> None:
    """The cases of the spec have a scale for all of B: only generated calls have one of its own for each."""

    def broken(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x * (scale[:1] if scale.dim() == 3 else scale)

    assert failures(shapes.run, SCALED, broken)
    assert failures(shapes.run, SCALED, scaled) == []


# --- domains --------------------------------------------------------------------------------------------------------


def test_an_index_lies_in_its_axis_or_is_one_of_the_extra_values() -> None:
    target = trials.drawn(PICKED, PICKED.cases[1], torch.float32, 0)["target"]
    assert bool(((target >= 0) & (target < 130) | (target == -100)).all())
    assert 0 < int((target == -100).sum()) < 32 and int((target >= 65).sum()) > 8


def test_an_index_into_an_axis_of_length_one_is_zero_or_extra() -> None:
    case = PICKED.case("x=40x1 target=40 ignore=7")
    assert set(trials.drawn(PICKED, case, torch.float32, 0)["target"].tolist()) == {0, 7}


def test_a_kernel_that_takes_the_ignored_value_for_a_class_is_caught() -> None:
    def broken(x: torch.Tensor, target: torch.Tensor, ignore: int) -> torch.Tensor:
        return x.gather(1, target.clamp(min=0)[:, None])[:, 0]

    unaware = replace(
        PICKED, inputs=(PICKED.inputs[0], replace(PICKED.tensors[1], domain=Index("V")), PICKED.inputs[2])
    )
    assert failures(accuracy.run, PICKED, broken)
    assert failures(accuracy.run, unaware, broken) == []


def test_a_kernel_that_takes_the_nearest_class_for_an_index_beyond_its_axis_is_caught() -> None:
    def broken(x: torch.Tensor, target: torch.Tensor, ignore: int) -> torch.Tensor:
        return picked(x, torch.where(target == ignore, target, target.clamp(0, x.shape[1] - 1)), ignore)

    found = failures(special_values.run, PICKED, broken)
    assert found and all(" in target: " in text for text in found)
    assert failures(accuracy.run, PICKED, broken) == failures(shapes.run, PICKED, broken) == []


def test_positive_numbers_are_above_zero() -> None:
    inputs = (AFFINE.tensors[0], replace(AFFINE.tensors[1], domain=Positive()), AFFINE.tensors[2])
    weight = trials.drawn(replace(AFFINE, inputs=inputs), AFFINE.cases[1], torch.float32, 0)["weight"]
    assert bool((weight > 0).all())


def test_counts_lie_between_nothing_and_everything() -> None:
    spec = catalog.spec("paged_attention")
    lengths = trials.drawn(spec, spec.cases[0], torch.float16, 0)["lengths"]
    most = spec.hypothetical(spec.cases[0], torch.float16)
    assert most is not None and bool(((lengths >= 0) & (lengths <= most.axes["L"] * most.axes["S"])).all())


def test_logarithms_are_of_numbers_that_add_up_to_one() -> None:
    spec = catalog.spec("log_softmax_backward")
    unruled = replace(spec, inputs=(spec.inputs[0], replace(spec.tensors[1], domain=Real()), spec.inputs[2]))
    made, any_numbers = (trials.drawn(s, s.cases[0], torch.float32, 0)["y"] for s in (spec, unruled))
    assert torch.allclose(made.exp().sum(-1), torch.ones(len(made)))
    assert not torch.allclose(any_numbers.exp().sum(-1), torch.ones(len(made)), rtol=0.5)


def test_a_computed_tensor_follows_what_it_is_computed_from() -> None:
    with registered_as(WEIGHTS, weights) as probe:
        trial = probe.make(WEIGHTS.cases[0], torch.float32)
    assert torch.equal(trial.tensors["lse"], trial.tensors["x"].double().logsumexp(-1).float())
    changed = trial.changed("", x=trial.tensors["x"] + 3)
    assert torch.allclose(changed.tensors["lse"], trial.tensors["lse"] + 3)
    given = trial.changed("", x=trial.tensors["x"] + 3, lse=trial.tensors["lse"])
    assert torch.equal(given.tensors["lse"], trial.tensors["lse"])


@pytest.mark.parametrize("check", [special_values, state, layout])
def test_without_the_rule_a_sound_kernel_that_reads_what_was_saved_is_accused(check: Any) -> None:
    unruled = replace(WEIGHTS, inputs=(WEIGHTS.inputs[0], replace(WEIGHTS.tensors[1], domain=Real())))
    assert failures(check.run, unruled, lambda x, lse: torch.exp(x - lse[:, None]))


def test_a_spec_whose_saved_value_is_another_one_is_caught() -> None:
    halved = Computed(lambda a: a["x"].logsumexp(-1) / 2)
    broken = replace(WEIGHTS, inputs=(WEIGHTS.inputs[0], replace(WEIGHTS.tensors[1], domain=halved)))
    assert failures(shapes.run, broken, lambda x, lse: torch.exp(x - lse[:, None]))


@pytest.mark.parametrize(
    ("domain", "says"),
    [
        (Index("W"), "target: expected an index into an axis of a tensor, got W"),
        (Index("V", ("ignored",)), "target: expected values of scalars beside the index, got ignored"),
    ],
)
def test_an_index_names_an_axis_and_scalars_of_the_operator(domain: Index, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        replace(PICKED, inputs=(PICKED.inputs[0], replace(PICKED.tensors[1], domain=domain), PICKED.inputs[2]))


# --- dtypes and saved outputs ------------------------------------------------------------------------------------


def test_the_tensor_with_the_most_dtypes_leads() -> None:
    first = Tensor("scale", "", dtypes=SINGLE)
    spec = operator(
        "scaled", (first, Tensor("x", "M")), lambda s, x: s * x, "scale=scalar x=9", outputs=(Output("y", like="x"),)
    )
    assert spec.leading.name == "x" and torch.bfloat16 in spec.dtypes
    assert spec.dtypes_for(torch.bfloat16) == {"scale": torch.float32, "x": torch.bfloat16}
    assert spec.bind(torch.ones(()), torch.ones(9, dtype=torch.float16)).dtype == torch.float16


PAIR = (Output("y", like="x"), Output("total", like="x", saved=True, doc="x * weight"))


def test_saved_outputs_are_judged_and_not_returned() -> None:
    errors = (ErrorModel(magnitude=lambda x, w, b: x.abs() + 1),) * 2
    spec = replace(AFFINE, outputs=PAIR, error=errors, reference=lambda x, w, b: (affine(x, w, b), x * w))
    assert spec.visible == 1 and "-> Tensor: ..." in type_stubs._function(spec)
    text = documentation(spec)
    assert (
        text.index("Returns:") < text.index("    y: ") < text.index("Saved for the backward") < text.index("    total:")
    )
    assert failures(shapes.run, spec, lambda x, w, b: (affine(x, w, b), x * w)) == []
    assert any("total" in text for text in failures(shapes.run, spec, lambda x, w, b: (affine(x, w, b), x)))


@pytest.mark.parametrize("outputs", [PAIR[::-1], PAIR[1:]])
def test_saved_outputs_come_last_and_not_alone(outputs: tuple[Output, ...]) -> None:
    error = (ErrorModel(magnitude=lambda *a: torch.zeros(())),) * len(outputs)
    with pytest.raises(SpecError, match="expected an output that is returned, and saved ones after it"):
        replace(AFFINE, outputs=outputs, error=error)
