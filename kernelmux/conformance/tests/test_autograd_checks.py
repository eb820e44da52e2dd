"""The checks `gradients` and `torch` catch what breaks between a sound kernel and torch; what is sound passes."""

import pytest
import torch

from kernelmux.conformance import check as catalogue
from kernelmux.conformance.judging.probe import Enough, Probe
from kernelmux.conformance.options import Options
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.choice import gradient_support
from kernelmux.registry.interop import autograd, torch_ops

KERNELS = [name for name in ("triton", "cuda") if not registered.unavailable(name, torch.device("cpu"))]
pytestmark = pytest.mark.skipif(not KERNELS, reason="needs a backend of kernels: triton or cuda cannot be imported")


@pytest.fixture(autouse=True)
def anew():
    dispatch._plans.clear()
    yield
    dispatch._plans.clear()


def judged(check: str, op: str, backend: str = "", variant: str = "", seed: int = 0) -> str:
    """What the check has to say against the usual variant of a backend, "" if nothing."""
    backend = backend or KERNELS[-1]
    variant = variant or list(registered.variants(backend, op))[-1]
    implementation = registered.variants(backend, op)[variant]
    probe = Probe(catalog.spec(op), check, backend, variant, implementation, Options(tier="smoke", seed=seed))
    try:
        catalogue.check(check).run(probe)
    except Enough:
        pass
    assert probe.records and all(r.assertions for r in probe.records if r.status == "passed")
    return "\n".join(r.text for r in probe.records if r.status == "failed")


@pytest.mark.parametrize("op", ["softmax", "add", "add_rms_norm", "argmax", "silu_backward"])
def test_sound_gradients_pass(op):
    assert judged("gradients", op) == ""
    assert judged("gradients", op, "torch_ref") == ""


@pytest.mark.parametrize("seed", range(6))
def test_floats_are_asked_of_an_operator_that_takes_integers_too(seed):
    """Which dtype comes first follows the seed."""
    assert judged("gradients", "transpose", seed=seed) == ""


def test_what_a_gradient_is_made_of():
    spec = catalog.spec("conv2d")
    call = spec.bind(torch.zeros(1, 2, 5, 5), torch.zeros(3, 2, 3, 3), torch.zeros(3))
    assert autograd.lacking(call, KERNELS[-1]) == []
    assert autograd.lacking(call, "nowhere") == ["conv2d_backward_input", "conv2d_backward_weight", "reduce_sum"]


def test_calls_whose_gradient_a_backend_lacks_are_skipped_one_by_one(monkeypatch):
    """Of linear only the calls with a silu need silu_backward: which one comes first does not matter."""
    spec, backend = catalog.spec("linear"), KERNELS[-1]
    has = registered.implements
    monkeypatch.setattr(registered, "implements", lambda name, op: op != "silu_backward" and has(name, op))
    variant, implementation = list(registered.variants(backend, "linear").items())[-1]
    probe = Probe(spec, "gradients", backend, variant, implementation, Options())
    made = [t for c in probe.small_cases(16) if not probe.reasons(t := probe.make(c, torch.float16))]
    silu = next(t for t in made if t.call.scalars["activation"] == "silu")
    plain = next(t for t in made if t.call.scalars["activation"] == "none")
    for order in ([plain, silu], [silu, plain]):
        probe.records.clear()
        monkeypatch.setattr(probe, "sample", lambda count, where, order=order: order)
        catalogue.check("gradients").run(probe)
        told = {r.case: (r.status, r.text) for r in probe.records}
        assert told[plain.case] == ("passed", "")
        assert told[silu.case][0] == "skipped" and "made of silu_backward" in told[silu.case][1]


def test_a_gradient_that_is_lost(monkeypatch):
    monkeypatch.setattr(autograd, "differentiable", lambda spec: spec.name != "softmax")
    monkeypatch.setattr(catalogue.check("gradients").run.__globals__["autograd"], "differentiable", lambda spec: True)
    assert "has no grad_fn" in _with_plain_calls(monkeypatch)


def _with_plain_calls(monkeypatch) -> str:
    """What the check says of a dispatcher that leaves autograd out."""
    made = dispatch.plan_of

    def plain(call, decision, values, around, run):
        return made(call, decision, values, around._replace(grad=False), run)

    monkeypatch.setattr(dispatch, "plan_of", plain)
    return judged("gradients", "softmax")


def test_a_saved_tensor_that_is_another_one(monkeypatch):
    keep = autograd.keep

    def swapped(ctx, spec, values, result):
        keep(ctx, spec, values, result.roll(1, -1).contiguous())

    monkeypatch.setattr(autograd, "keep", swapped)
    assert "of the bound of softmax_backward" in judged("gradients", "softmax")


def test_a_gradient_that_is_scaled(monkeypatch):
    declared = autograd._declared
    monkeypatch.setattr(autograd, "_declared", lambda *a: {n: 1.01 * g for n, g in declared(*a).items()})
    assert "the gradient of x" in judged("gradients", "silu")
    assert "the gradient of x" in judged("gradients", "transpose")


def test_a_tensor_that_gets_none(monkeypatch):
    declared = autograd._declared
    monkeypatch.setattr(autograd, "_declared", lambda *a: {n: g for n, g in declared(*a).items() if n != "weight"})
    assert "weight: got no gradient" in judged("gradients", "rms_norm")


def test_a_gradient_that_only_comes_for_all_at_once(monkeypatch):
    gradients = autograd.gradients

    def shared(ctx, spec, grads, needs, operator):
        found = gradients(ctx, spec, grads, needs, operator)
        return found if all(needs[:2]) else tuple(g if g is None else 2 * g for g in found)

    monkeypatch.setattr(autograd, "gradients", shared)
    assert "the gradient of weight alone" in judged("gradients", "rms_norm")


def test_a_refusal_that_says_nothing(monkeypatch):
    monkeypatch.setattr(gradient_support, "lack", lambda spec, backend, tensor: None)
    assert "came without a gradient and without a word" in judged("gradients", "silu_backward")


def test_a_baseline_whose_formula_torch_cannot_follow(monkeypatch):
    ladder = registered.variants("torch_ref", "silu")
    real = ladder["plain"].fn
    monkeypatch.setitem(ladder, "plain", type(ladder["plain"])(lambda x: real(x.detach()) + 0 * x, "detached"))
    assert "Jacobian mismatch" in judged("gradients", "silu", "torch_ref")


@pytest.mark.parametrize("op", ["softmax", "cross_entropy"])
def test_sound_operators_of_torch_pass(op):
    assert judged("torch", op) == ""
    assert judged("torch", op, "torch_ref") == ""


def test_a_fake_tensor_of_another_shape(monkeypatch):
    hollow = autograd.hollow
    monkeypatch.setattr(autograd, "hollow", lambda call: tuple(y.new_empty((1, *y.shape)) for y in hollow(call)))
    assert "test_faketensor" in judged("torch", "silu")


def test_a_compiled_call_that_computes_something_else(monkeypatch):
    dispatch.function("silu")  # made from what is there before
    call = dispatch.call
    monkeypatch.setattr(torch_ops, "runs", lambda spec, values, backend: 2 * call(spec, values, backend))
    assert "y of a compiled call" in judged("torch", "silu")
