"""What holds between several calls: what an implementation may be exempt from, and which rows are asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kernelmux.conformance.checks import properties
from kernelmux.conformance.tests.trial_specs import failures, registered_as
from kernelmux.registry import catalog
from kernelmux.registry.backend import Implementation
from kernelmux.registry.backend.validation import check_implementation
from kernelmux.registry.conditions import UnevenRows
from kernelmux.registry.errors import SpecError
from kernelmux.registry.spec import BatchInvariant, OpSpec, PermutationInvariant, ShiftInvariant
from kernelmux.registry.spec.metamorphic import Property

T = torch.Tensor


def norm(x: T, weight: T, eps: float) -> T:
    z = x.double()
    return (z / torch.sqrt((z * z).mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def weights(x: T, axis: int, scale: float) -> T:
    return torch.softmax(x.double() * scale, axis).to(x.dtype)


def sums(x: T, axis: int, scale: float) -> T:
    return (x.double() * scale).exp().to(x.dtype)


def only(op: str, declared: Property) -> OpSpec:
    return replace(catalog.spec(op), properties=(declared,))


@pytest.mark.parametrize(
    ("op", "declared", "sound"),
    [
        ("rms_norm", BatchInvariant(), norm),
        ("softmax", BatchInvariant(), weights),
        ("softmax", ShiftInvariant("x"), weights),
        ("softmax", PermutationInvariant("x"), weights),
    ],
)
def test_a_sound_function_has_the_property(op: str, declared: Property, sound: Callable[..., T]) -> None:
    assert failures(properties.run, only(op, declared), sound) == []


@pytest.mark.parametrize(
    ("op", "declared", "broken", "says"),
    [
        ("rms_norm", BatchInvariant(), lambda x, w, e: norm(x, w, e) * (1 + x.numel() % 3 * 1e-6), "by themselves"),
        ("softmax", ShiftInvariant("x"), lambda x, a, s: sums(x.clamp(max=9), a, s), "what both bounds allow"),
        ("softmax", PermutationInvariant("x"), lambda x, a, s: weights(x, a, s).cumsum(a), "what both bounds allow"),
    ],
)
def test_a_function_without_the_property_is_caught(
    op: str, declared: Property, broken: Callable[..., T], says: str
) -> None:
    assert any(says in text for text in failures(properties.run, only(op, declared), broken))


def test_the_axis_that_a_call_computes_along_counts_no_rows() -> None:
    with registered_as(only("softmax", BatchInvariant()), weights) as probe:
        properties.run(probe)
    assert probe.records
    for record in probe.records:
        axis = int(record.axes["axis"])
        assert all(record.note != f"rows along axis {i} of ..." for i in range(axis, 4))


def test_an_exempt_implementation_is_skipped_with_its_reason() -> None:
    spec = only("rms_norm", BatchInvariant())
    with registered_as(spec, norm) as probe:
        object.__setattr__(probe.implementation, "exempt", {"BatchInvariant": "rows share a tile"})
        properties.run(probe)
    assert [(r.status, r.text) for r in probe.records] == [("skipped", "BatchInvariant: rows share a tile")]


def test_a_condition_exempts_the_calls_that_meet_it_and_no_others() -> None:
    def by_place(x: T, weight: T, eps: float) -> T:
        uneven = x.shape[-1] * x.element_size() % 16
        return norm(x, weight, eps) * (1 + x.numel() % 3 * 1e-6 if uneven else 1)

    asked = {}
    for exempt in ({}, {"BatchInvariant": UnevenRows("x")}):
        with registered_as(only("rms_norm", BatchInvariant()), by_place) as probe:
            object.__setattr__(probe.implementation, "exempt", exempt)
            properties.run(probe)
            asked[bool(exempt)] = {record.status for record in probe.records}
    assert asked == {False: {"passed", "failed"}, True: {"passed"}}


WRONG = ({"ShiftInvariant": "why"}, {"BatchInvariant": ""}, {"BatchInvariant": 1}, "BatchInvariant")


@pytest.mark.parametrize("exempt", WRONG)
def test_an_exemption_names_a_property_of_the_spec_and_a_reason(exempt: object) -> None:
    found = Implementation(norm, "", exempt=exempt)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"exempt: expected reasons by property \(BatchInvariant\)"):
        check_implementation("ours/one", only("rms_norm", BatchInvariant()), found)


def test_a_condition_exempts_from_rows_alone() -> None:
    found = Implementation(weights, "", exempt={"ShiftInvariant": UnevenRows("x")})
    with pytest.raises(SpecError, match=r"exempt: expected reasons by property \(ShiftInvariant\)"):
        check_implementation("ours/one", only("softmax", ShiftInvariant("x")), found)


def test_a_property_is_declared_once() -> None:
    with pytest.raises(SpecError, match="expected each kind once, got BatchInvariant, BatchInvariant"):
        replace(catalog.spec("rms_norm"), properties=(BatchInvariant(), BatchInvariant(("N",))))
