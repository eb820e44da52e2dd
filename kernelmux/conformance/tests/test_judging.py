"""What the judging itself is worth: vacuous cases, an outlying reference, layouts with their own reference."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kernelmux.conformance.failures import failure_source
from kernelmux.conformance.inputs import trials
from kernelmux.conformance.options import Options
from kernelmux.conformance.session.execute import Outcome, execute
from kernelmux.conformance.session.plan import Item
from kernelmux.emulator import EmulatorError
from kernelmux.registry import catalog
from kernelmux.registry.backend import Implementation
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.cases import Case
from kernelmux.registry.conditions import AtLeast, Condition, Dtypes, Multiple
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import OpSpec
from kernelmux.registry.spec import op_spec as specs

Respecified = Callable[..., Outcome]


@pytest.fixture
def respecified(monkeypatch: pytest.MonkeyPatch) -> Iterator[Respecified]:
    """Run one check against a spec that was changed for the occasion."""

    def run(spec: OpSpec, check: str, backend: str = "spec", variant: str = "") -> Outcome:
        monkeypatch.setattr(catalog, "spec", lambda name: spec)
        trials._memory.clear()
        return execute(Item(spec.name, backend, variant, check), Options())

    yield run
    trials._memory.clear()


def test_a_bound_that_accepts_zeros_makes_every_case_vacuous(respecified: Respecified) -> None:
    spec = catalog.spec("softmax")
    assert isinstance(spec.error, ErrorModel)
    loose = replace(spec, error=replace(spec.error, magnitude=lambda x, axis, scale: torch.full_like(x, 1e9)))
    outcome = respecified(loose, "vacuity")
    assert outcome.status == "failed" and "vacuous: it accepts zeros" in outcome.text


def test_a_case_of_zeros_is_vacuous(respecified: Respecified, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(catalog.spec("matmul"), cases=(Case("a=8x8 b=8x8"),))
    monkeypatch.setattr(specs, "draw", lambda shape, *rest: torch.zeros(shape))
    outcome = respecified(spec, "vacuity")
    assert outcome.status == "failed" and "no case rejects zeros" in outcome.text


def test_a_wrong_reference_is_the_outlier(respecified: Respecified, mutants: None) -> None:
    spec = catalog.spec("softmax")
    wrong = replace(spec, reference=lambda x, axis, scale: spec.reference(x, axis, scale) * 1.1)
    outcome = respecified(wrong, "parity", "mutants_basics", "sound")
    assert outcome.status == "failed" and "it is the outlier" in outcome.text


def test_inputs_that_are_not_exact_are_refused(respecified: Respecified) -> None:
    spec = catalog.spec("reduce_sum")
    drawn = replace(spec, exact=lambda case, dtype, rng: {"x": torch.rand(case.shapes["x"], generator=rng).to(dtype)})
    outcome = respecified(drawn, "exact", "torch_ref", "plain")
    assert outcome.status == "failed" and "not exact" in outcome.text


def test_seeds_come_from_operator_case_dtype_and_seed() -> None:
    spec, cpu = catalog.spec("add"), torch.device("cpu")
    one, two = (trials.drawn(spec, spec.cases[0], torch.float32, seed)["x"] for seed in (0, 1))
    assert torch.equal(one, trials.trial(spec, spec.cases[0], torch.float32, 0, cpu).values[0])
    assert not torch.equal(one, two)


@pytest.mark.parametrize(
    ("op", "result", "expected"),
    [
        ("softmax", None, "expected a torch.Tensor, got None"),
        ("softmax", np.zeros(3, np.float32), "expected a torch.Tensor, got numpy.ndarray"),
        ("softmax", [torch.zeros(3)], "expected a torch.Tensor, got list of 1"),
        ("softmax", (torch.zeros(3), torch.zeros(3)), "expected 1 output, got 2"),
        ("rms_norm_backward", [torch.zeros(3)] * 2, "expected a tuple of 2 tensors, got list of 2"),
        ("rms_norm_backward", torch.zeros(3), "expected 2 outputs, got 1"),
        ("rms_norm_backward", (torch.zeros(3), None), "grad_weight: expected a torch.Tensor, got None"),
        ("rms_norm_backward", None, "expected a tuple of 2 tensors, got None"),
    ],
)
def test_what_is_no_tensor_is_named(op: str, result: object, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "call", lambda *call: result)
    outcome = execute(Item(op, "torch_ref", "exact", "accuracy"), Options())
    assert outcome.status == "failed" and f"seed 0x0: {expected}\n" in outcome.text


def test_the_frame_of_the_implementation_comes_first(tmp_path: Path) -> None:
    """A library raises below a function of the package in `tmp_path`."""
    source = tmp_path / "softmax.py"
    source.write_text("import numpy as np\n\ndef softmax(x):\n    return np.broadcast_to(x, (3, 5))\n")
    scope: dict[str, object] = {}
    exec(compile(source.read_text(), str(source), "exec"), scope)
    with pytest.raises(ValueError, match="broadcast") as caught:
        scope["softmax"](np.zeros(4))
    lines = failure_source.raised(caught.value, tmp_path).splitlines()
    assert lines[-2] == f"  at {source}:4 in softmax: return np.broadcast_to(x, (3, 5))"
    assert lines[-1].startswith("  (raised at ") and "numpy" in lines[-1]
    assert failure_source.cause(caught.value, tmp_path) == "softmax.py:4: ValueError"
    assert "(raised at" not in failure_source.raised(caught.value) and "numpy" in failure_source.raised(caught.value)


def test_both_lines_of_a_race_are_shown_with_their_source(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    source = tmp_path / "deep" / "kernel.cu"
    source.write_text("one\n  t[i] = x[i];\nthree\n  y[i] = t[63 - i];\n")
    text = "read of shared memory at offset 4, and no barrier since thread 32 wrote it"
    error = EmulatorError(text, kind="race", file="kernel.cu", line=4, earlier=("kernel.cu", 2))
    assert str(error) == f"kernel.cu:4: race: {text} at kernel.cu:2"
    assert failure_source.raised(error, tmp_path).splitlines()[1:] == [
        f"  at {source}:4: y[i] = t[63 - i];",
        f"  the other at {source}:2: t[i] = x[i];",
    ]
    assert failure_source.cause(error, tmp_path) == "kernel.cu:4: race"


@pytest.mark.parametrize("condition", [AtLeast("J", 3), Multiple("J", 8), Dtypes("J", torch.float32)])
def test_a_condition_on_an_unknown_axis_names_backend_variant_and_axes(
    condition: Condition, monkeypatch: pytest.MonkeyPatch
) -> None:
    ladder = {"exact": Implementation(fn=lambda x, axis, scale: x, idea="", requires=(condition,))}
    monkeypatch.setattr(registered, "variants", lambda name, op: ladder)
    call = catalog.spec("softmax").bind(torch.zeros(2, 3))
    (verdict,) = dispatch.verdicts(call, "torch_ref", "exact")
    says = r'a condition of torch_ref/exact fails: SpecError: softmax: .* names "J", expected .*: .*[NKx]'
    assert re.match(says, verdict.reasons[0])
    outcome = execute(Item("softmax", "torch_ref", "exact", "claims"), Options())
    assert outcome.status == "failed" and 'softmax: a condition names "J"' in outcome.text


@pytest.mark.parametrize(
    ("op", "case", "seed"),
    [
        ("cross_entropy", "logits1x1-target1", 201),  # an ignored row alone: the loss is NaN, whatever the logits are
        ("layer_norm", "x1x1-weight1-bias1", 17),  # the result is the bias, which happens to be near 0
        ("softmax_backward", "grad_out1x33001-y1x33001", 23),  # five draws in bf16 hide 5 %, one in fp32
        ("cross_entropy", "logits5x4099-target5", 7),  # no element happens to have a share that shows
    ],
)
def test_no_seed_makes_a_case_vacuous(op: str, case: str, seed: int) -> None:
    outcome = execute(Item(op, "spec", "", "vacuity"), Options(seed=seed, cases=(case,)))
    assert outcome.status == "passed", outcome.text
