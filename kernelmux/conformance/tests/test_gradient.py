"""What a spec says of its gradient is checked: against autograd, and against what a forward call leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernelmux.conformance.checks import gradient
from kernelmux.conformance.judging.probe import Enough, Probe
from kernelmux.conformance.options import Options
from kernelmux.registry import catalog
from kernelmux.registry.errors import SpecError
from kernelmux.registry.spec import Composed, Computed, Gradient, NoGradient, OpSpec, Tensor


def said(spec: OpSpec, options: Options | None = None) -> list[str]:
    """What the check says against a spec, a text per failing trial."""
    probe = Probe(spec, "gradient", "spec", "", None, options or Options())
    try:
        gradient.run(probe)
    except Enough:
        pass
    assert any(record.assertions for record in probe.records)
    return [record.text for record in probe.records if record.status == "failed"]


def backward_of(op: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> OpSpec:
    """The spec of an operator whose backward operator is another one."""
    spec = catalog.spec(op)
    assert isinstance(spec.gradient, Gradient)
    broken, usual = replace(catalog.spec(spec.gradient.op), **changes), catalog.spec
    name = broken.name
    monkeypatch.setattr(catalog, "spec", lambda op: broken if op == name else usual(op))
    return spec


def test_a_wrong_formula_of_a_gradient_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own cases agree with its own reference: nothing else compares it with the forward operator."""
    spec = backward_of("softmax", monkeypatch, reference=lambda grad_out, y, axis, scale: scale * y * grad_out)
    assert any("the gradient of x at [" in text for text in said(spec))


def test_a_saved_value_that_is_another_one_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """lse is computed for the suite as the forward call computes it, or sound kernels of the two do not fit together."""
    inputs = catalog.spec("cross_entropy_backward").inputs
    halved = Computed(lambda a: a["logits"].logsumexp(-1) / 2)
    changed = tuple(replace(i, domain=halved) if isinstance(i, Tensor) and i.name == "lse" else i for i in inputs)
    spec = backward_of("cross_entropy", monkeypatch, inputs=changed)
    assert any("what is computed for lse" in text for text in said(spec))


def test_a_composition_that_forgets_a_sign_is_caught() -> None:
    forgot = Composed(("x",), lambda kx, v, g: {"x": kx.rope(g["y"], v["cos"], v["sin"], v["interleaved"])})
    assert any("the gradient of x" in text for text in said(replace(catalog.spec("rope"), gradient=forgot)))
    assert said(catalog.spec("rope")) == []


def test_a_scalar_that_does_not_reach_the_gradient_is_caught() -> None:
    plain = Composed(("x",), lambda kx, v, g: {"x": kx.softmax_backward(g["y"], v["y"], v["axis"])})
    found = said(replace(catalog.spec("softmax"), gradient=plain))
    assert found and all("scale" in text for text in found)


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        (Gradient("softmax_backward", wrt=("y",)), "gradient: expected floating tensors, got y"),
        (Gradient("softmax_backward", wrt=("x",), saves=("lse",)), "gradient: expected outputs to save, got lse"),
    ],
)
def test_a_gradient_names_what_the_operator_has(declared: Gradient, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        replace(catalog.spec("softmax"), gradient=declared)


def test_what_is_saved_is_used() -> None:
    with pytest.raises(SpecError, match="expected it to take what is saved for it, lse"):
        replace(catalog.spec("cross_entropy"), gradient=Gradient("cross_entropy_backward", wrt=("logits",)))


def test_an_argument_that_the_forward_call_does_not_leave_is_named() -> None:
    unsaved = replace(catalog.spec("softmax"), gradient=Gradient("softmax_backward", wrt=("x",)))
    assert any("softmax_backward takes y, expected arguments and saved outputs" in text for text in said(unsaved))


def test_gradients_come_in_the_declared_order() -> None:
    turned = replace(catalog.spec("rms_norm"), gradient=Gradient("rms_norm_backward", wrt=("weight", "x")))
    assert all("rms_norm_backward gives grad_x, grad_weight, expected grad_weight, grad_x" in t for t in said(turned))


def test_a_spec_that_says_nothing_is_an_error_and_one_that_says_why_not_is_skipped() -> None:
    probe = Probe(replace(catalog.spec("add"), gradient=None), "gradient", "spec", "", None, Options())
    with pytest.raises(LookupError, match=r"add: expected gradient=Gradient"):
        gradient.run(probe)
    silent = Probe(
        replace(catalog.spec("add"), gradient=NoGradient("a trial")), "gradient", "spec", "", None, Options()
    )
    gradient.run(silent)
    assert [r.text for r in silent.records] == ["no gradient: a trial"]


def test_a_residual_has_the_gradient_of_its_sum() -> None:
    spec = catalog.spec("add_rms_norm")
    assert isinstance(spec.gradient, Gradient) and spec.gradient.tensors == ("x", "weight", "residual")
    assert said(spec) == []
    wrong = replace(spec.gradient, wrt=("x", "weight"), same={})
    assert said(replace(spec, gradient=wrong)) == []
    residual = Composed(("residual",), lambda kx, v, g: {"residual": torch.zeros_like(v["residual"])})
    assert said(replace(spec, gradient=residual))


def test_a_gradient_that_cancels_is_compared_with_what_the_scale_makes_of_its_rounding() -> None:
    """With one key the gradient of q is zero: a difference of two equal products, times a scale of 128."""
    asked = Options(cases=("q=1x1x1x64,k=1x1x1x64,v=1x1x1x64,scale=128.0",), dtypes=("fp32",), seed=503)
    assert said(catalog.spec("attention"), asked) == []
