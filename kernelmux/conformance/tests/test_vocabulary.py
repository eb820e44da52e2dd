"""What a spec can say of its outputs: dtypes of their own, an arithmetic for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.options import Options
from kernelmux.registry import catalog
from kernelmux.registry.backend import Implementation
from kernelmux.registry.backend.validation import check_implementation
from kernelmux.registry.errors import SpecError
from kernelmux.registry.numerics import EQUAL
from kernelmux.registry.spec import Call, OpSpec, Output
from kernelmux.registry.spec.docstrings import documentation

Pair = tuple[torch.Tensor, torch.Tensor]


def ordered(x: torch.Tensor, axis: int, scale: float) -> Pair:
    """Scaled values in ascending order, and where each comes from."""
    values, places = torch.sort(x * scale, dim=axis, stable=True)
    return values, places


def _index_dtype(call: Call) -> torch.dtype:
    return torch.int32 if call.axes["N"] < 4 else torch.int64


def spec() -> OpSpec:
    softmax = catalog.spec("softmax")
    outputs = (Output("y", like="x"), Output("at", like="x", dtype=_index_dtype, doc="where each value comes from"))
    return replace(softmax, outputs=outputs, error=(softmax.errors[0], EQUAL), reference=ordered)


def judged(fn: Callable[..., Pair], text: str = "x=4x9") -> str:
    """What a judge says of a function: "" if it is right."""
    one = spec()
    probe = Probe(one, "accuracy", "torch_ref", "exact", Implementation(fn, ""), Options())
    trial = probe.make(one.case(text), torch.float32)
    with probe.judge(trial) as judge:
        judge.accurate(fn(*trial.call.arguments.values()))
    return probe.records[0].text


def test_an_output_may_have_a_dtype_of_its_own() -> None:
    assert judged(ordered) == ""
    assert "at: expected dtype i32, got torch.int64" in judged(ordered, "x=4x3")
    assert judged(lambda x, axis, scale: (ordered(x, axis, scale)[0], ordered(x, axis, scale)[1].int()), "x=4x3") == ""


def test_an_index_must_be_equal_while_the_values_beside_it_have_a_bound() -> None:
    def elsewhere(x: torch.Tensor, axis: int, scale: float) -> Pair:
        values, places = ordered(x, axis, scale)
        places[1, 2] = places[1, 3]
        return values * (1 + 2.0**-24), places

    assert "1 of 36" in judged(elsewhere) and "at" in judged(elsewhere)


def test_the_documentation_of_an_operator_tells_what_its_outputs_are() -> None:
    fixed = replace(spec(), outputs=(Output("y", like="x"), Output("at", like="x", dtype=torch.int64)))
    assert "at: i64, shape of x" in documentation(fixed)
    assert "at: dtype by the arguments, shape of x; where each value comes from" in documentation(spec())


def test_each_output_is_judged_by_its_own_arithmetic() -> None:
    one = catalog.spec("rms_norm_backward")
    how = {"grad_x": "fp32", "grad_weight": "fp32_sequential"}
    probe = Probe(one, "accuracy", "cuda", "own", Implementation(lambda *a: a, "", arithmetic=how), Options())
    trial = probe.make(one.case("grad_out=4x4096 x=4x4096 weight=4096"), torch.float32)
    assert [a.name for a in probe.arithmetics(trial)] == ["fp32", "fp32_sequential"]
    mixed, loose = (trial.bounds(a) for a in (probe.arithmetics(trial), probe.arithmetics(trial)[1:] * 2))
    assert mixed[0] and loose[0] and mixed[1] and loose[1]
    assert bool((mixed[0].total < loose[0].total / 3).all()) and torch.equal(mixed[1].total, loose[1].total)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"grad_x": "fp32"}, "arithmetic: expected one for each of grad_x, grad_weight"),
        ({"grad_x": "fp32", "grad_weight": "mma"}, "expected an arithmetic that the spec allows"),
        ("mma", "expected an arithmetic that the spec allows"),
    ],
)
def test_an_arithmetic_is_one_of_those_that_the_spec_allows(how: str | dict[str, str], says: str) -> None:
    def fn(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
        return grad_out, weight

    with pytest.raises(SpecError, match=says):
        check_implementation("ours/one", catalog.spec("rms_norm_backward"), Implementation(fn, "", arithmetic=how))
