"""What a probe sets for the calls that it makes, what it says of their results, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernelmux.conformance.checks import claims
from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.options import Options
from kernelmux.emulator.settings import current_checks, current_time_limit
from kernelmux.registry import catalog
from kernelmux.registry.backend import Implementation
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.spec import Call


@pytest.mark.parametrize(("tier", "seconds"), [("smoke", 60), ("ci", 60), ("full", 600), ("huge", 3600)])
def test_emulated_calls_are_checked_and_have_time(tier: str, seconds: float) -> None:
    """Large cases take longer than a launch may take otherwise."""
    implementation = registered.variants("cuda", "add")["scalar"]
    probe = Probe(catalog.spec("add"), "accuracy", "cuda", "scalar", implementation, Options(tier=tier, device="cpu"))
    with probe.environment():
        assert (current_checks(), current_time_limit()) == ("full", seconds)
    assert current_time_limit() == 60


def test_conditions_that_few_drawn_calls_meet_are_met_by_a_case() -> None:
    """Of the calls that seed 406 draws none has windows side by side as this variant takes them."""
    implementation = registered.variants("triton", "conv2d_backward_weight")["patches"]
    options = Options(tier="smoke", seed=406, device="cpu")
    probe = Probe(catalog.spec("conv2d_backward_weight"), "claims", "triton", "patches", implementation, options)
    made = [(case, dtype) for case, dtype in probe.pairs() if case not in options.cases_of(probe.spec)]
    assert made and not any(probe.reasons(probe.make(case, dtype)) for case, dtype in made)


def probe_of(fn: Callable[..., Any], op: str, check: str = "accuracy", **options: Any) -> Probe:
    """A probe of a function that no backend has registered."""
    probe = Probe(catalog.spec(op), check, "torch_ref", "exact", Implementation(fn, "", **options), Options())
    probe.call = lambda values: result if isinstance(result := fn(*values), tuple) else (result,)  # type: ignore[method-assign]
    return probe


def test_a_changed_input_is_told_and_given_back() -> None:
    """Other variants meet the same trials, so what one does to them must not show there."""

    def square_in_place(x: torch.Tensor) -> torch.Tensor:
        return x.copy_(x.t().clone()).clone()

    probe = probe_of(square_in_place, "transpose")
    trial = probe.make(probe.spec.case("x=64x64"), torch.float32)
    before = trial.values[0].clone()
    with probe.judge(trial) as judge:
        judge.call()
    assert "the input x was changed by the call" in probe.records[0].text
    assert torch.equal(trial.values[0], before) and torch.equal(trial.references[0], before.t().double())


def test_what_is_against_another_device_is_no_reason_here() -> None:
    """A CPU is asked about as well where a GPU runs the calls: what it alone refuses must run."""

    class RealCall:
        text = "tensors that are there"

        def check(self, call: Call) -> str | None:
            return f"nothing is there, needs {self.text}" if call.hypothetical else None

    probe = probe_of(lambda x, axis, scale: torch.softmax(x * scale, axis), "softmax", "claims", requires=(RealCall(),))
    claims.run(probe)
    assert {record.status for record in probe.records} == {"passed"}


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (lambda x: None, "expected a torch.Tensor, got None"),
        (lambda x: x.numpy(), "expected a torch.Tensor, got numpy.ndarray"),
        (lambda x: [x], "expected a torch.Tensor, got list of 1"),
        (lambda x: (x, x), "expected 1 output, got 2"),
        (lambda x: x.to_sparse(), "y: expected a torch.Tensor, got torch.sparse_coo"),
        (lambda x: x.t(), "y shares its memory with the input x"),
        (lambda x: x.clone().t(), "y: expected a contiguous tensor"),
        (lambda x: x.new_zeros(()).expand(9, 7), "y: expected a contiguous tensor, got strides (0, 0)"),
        (lambda x: x.t().contiguous().to("meta"), "y: expected it on cpu, got meta"),
    ],
)
def test_outputs_that_are_no_fresh_contiguous_tensors_are_told(result: Callable[..., Any], text: str) -> None:
    probe = probe_of(result, "transpose")
    with probe.judge(probe.make(probe.spec.case("x=7x9"), torch.float32)) as judge:
        judge.well_formed(judge.call())
    assert text in probe.records[0].text


def test_a_list_in_place_of_several_outputs_is_told() -> None:
    probe = probe_of(lambda g, x, w, eps: [x.clone(), w.clone()], "rms_norm_backward")
    with probe.judge(probe.make(probe.spec.case("grad_out=4x8 x=4x8 weight=8"), torch.float32)) as judge:
        judge.call()
    assert "expected a tuple of 2 tensors, got list" in probe.records[0].text


def test_a_sample_takes_values_of_scalars_in_turn() -> None:
    """What goes wrong for other scales than one goes wrong in every check."""
    probe = probe_of(lambda x, axis, scale: x, "softmax")
    scales = [trial.call.scalars["scale"] for trial in probe.sample(8)]
    assert len(set(scales)) > 3 and min(scales) < 0


@pytest.mark.parametrize(
    ("precision", "dtype", "name"),
    [("ieee", torch.float32, "fp32_sequential"), ("tf32", torch.float32, "tf32"), ("ieee", torch.float16, "mma")],
)
def test_a_declaration_of_tf32_counts_where_the_call_asks_for_it(precision: str, dtype: torch.dtype, name: str) -> None:
    probe = probe_of(lambda a, b, precision: a, "matmul", arithmetic="tf32")
    trial = probe.make(probe.spec.case(f"a=8x8 b=8x8 precision={precision}"), dtype)
    assert [how.name for how in probe.arithmetics(trial)] == [name]
