"""Gradients, tracing, wrapped tensors, negative views: kernels see addresses alone, so they refuse or are given copies."""

import pickle

import pytest
import torch
import torch.autograd.forward_ad as forward
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.description import Backend, Implementation
from kernelmux.registry.call import dispatch
from kernelmux.registry.errors import UnsupportedError
from kernelmux.registry.spec.conditions import Aligned

pytestmark = pytest.mark.filterwarnings("ignore::kernelmux.registry.errors.FallbackWarning")  # see test_fallbacks
X = torch.linspace(-2, 2, 12).reshape(3, 4)


class Kernels:
    """A backend that computes softmax from what lies in memory, as a kernel would; `ran` counts its calls."""

    def __init__(self):
        self.ran = 0
        self.seen = None

    def softmax(self, x, axis, scale):
        self.ran, self.seen = self.ran + 1, x
        with torch.no_grad():
            plain = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())
            return torch.softmax(plain * scale, axis).contiguous()


@pytest.fixture
def kernels(monkeypatch):
    """The baseline, and beside it the backend "kernels"."""
    home = Kernels()
    backends = {
        "kernels": Backend("kernels", "memory only", 90, lambda device: None),
        "torch_ref": registered.backend("torch_ref"),
    }
    ladders = {
        "kernels": {"plain": Implementation(fn=home.softmax, idea="reads memory")},
        "torch_ref": registered.variants("torch_ref", "softmax"),
    }
    monkeypatch.setattr(registered, "_packages", lambda: dict.fromkeys(backends, "fake"))
    monkeypatch.setattr(registered, "backend", lambda name: backends[name])
    monkeypatch.setattr(registered, "unavailable", lambda name, device: None)
    monkeypatch.setattr(registered, "variants", lambda name, op: ladders[name] if op == "softmax" else {})
    dispatch._plans.clear()
    yield home
    dispatch._plans.clear()


softmax = dispatch.function("softmax")


def test_a_gradient_is_never_lost(kernels):
    """A backend that has the forward and not the backward does not run a call that wants a gradient."""
    leaf = X.clone().requires_grad_()
    assert dispatch.which("softmax", X) == "kernels/plain"
    assert dispatch.which("softmax", leaf) == "torch_ref/exact"
    assert softmax(X, backend="kernels").requires_grad is False
    with pytest.raises(UnsupportedError) as caught:
        softmax(leaf, backend="kernels")
    assert (
        "x requires a gradient, and kernels has no softmax_backward, which computes it: call it under torch.no_grad(),"
        ' pass x.detach(), or use backend="torch_ref"' in str(caught.value)
    )
    assert "requires a gradient" in str(dispatch.explain("softmax", leaf, backend="kernels"))
    for request in (None, "kernels,torch_ref"):
        assert softmax(leaf, backend=request).requires_grad
    assert kernels.ran == 1


def test_without_grad_mode_a_leaf_is_a_tensor_like_any_other(kernels):
    leaf = X.clone().requires_grad_()
    with pytest.raises(UnsupportedError):
        softmax(leaf, backend="kernels")
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert torch.equal(softmax(leaf, backend="kernels"), torch.softmax(X, -1))
    with pytest.raises(UnsupportedError):
        softmax(leaf, backend="kernels")


TRACED = {
    "make_fx": lambda f: make_fx(f)(X)(X + 1),
    "make_fx of fake tensors": lambda f: make_fx(f, tracing_mode="fake")(X)(X + 1),
    "make_fx of symbols": lambda f: make_fx(f, tracing_mode="symbolic")(X)(X + 1),
    "functionalize": lambda f: make_fx(torch.func.functionalize(f))(X)(X + 1),
    "vmap": lambda f: torch.func.vmap(f)(X + 1),
    "jit.trace": lambda f: torch.jit.trace(f, (X,), check_trace=False)(X + 1),
}


@pytest.mark.parametrize("how", TRACED)
@pytest.mark.filterwarnings("ignore")
def test_a_trace_holds_the_operator_and_not_the_numbers_of_the_trace(kernels, how):
    softmax(X, backend="kernels")  # remembered, outside of the trace
    for name in ("kernels", "torch_ref"):
        ran = kernels.ran
        assert torch.allclose(TRACED[how](lambda x: softmax(x, backend=name)), torch.softmax(X + 1, -1))  # noqa: B023
        assert (kernels.ran > ran) == (name == "kernels")
    assert softmax(X, backend="kernels").shape == X.shape  # afterwards as before


@pytest.mark.filterwarnings("ignore")  # torch.jit is on its way out
def test_what_is_traced_on_the_baseline_is_the_operator(kernels):
    graph = make_fx(lambda x: softmax(x, scale=2.0))(X)
    assert torch.allclose(graph(X + 1), torch.softmax((X + 1) * 2, -1))
    traced = torch.jit.trace(lambda x: softmax(x, backend="torch_ref"), (X,))
    assert torch.allclose(traced(X * 3), torch.softmax(X * 3, -1))
    assert torch.allclose(torch.func.vmap(lambda x: softmax(x))(X), torch.softmax(X, -1))


def test_fake_and_meta_tensors_give_shapes(kernels):
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(X)
    for x in (fake, X.to("meta")):
        for name in ("kernels", "torch_ref", None):
            found = softmax(x, backend=name)
            assert found.shape == X.shape and found.device == x.device and type(found) is type(x)
    assert kernels.ran == 0
    assert dispatch.which("softmax", X.to("meta"), backend="kernels") == "kernels/plain"


@pytest.mark.filterwarnings("ignore")  # torch's own decompositions
def test_forward_derivatives_are_not_lost(kernels):
    with forward.dual_level():
        dual = forward.make_dual(X, torch.ones_like(X))
        with pytest.raises(UnsupportedError, match="x carries a forward derivative"):
            softmax(dual, backend="kernels")
        assert forward.unpack_dual(softmax(dual)).tangent is not None
        assert softmax(X, backend="kernels").shape == X.shape


def test_a_mode_that_only_watches_lets_kernels_run(kernels):
    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Watch():
        softmax(X, backend="kernels")
    assert kernels.ran == 1


def test_the_negative_bit_of_a_view_is_applied(kernels):
    negative = torch.complex(X, X).conj().imag
    assert negative.is_neg()
    softmax(negative.contiguous() * 1.0, backend="kernels")
    for request in ("kernels", "torch_ref", None):
        assert torch.allclose(softmax(negative, backend=request), torch.softmax(-X, -1))
    assert not kernels.seen.is_neg()
    decision = dispatch.explain("softmax", negative, backend="kernels")
    assert decision.chosen.copies == ("x",) and "copies x" in str(decision)


def test_the_negative_bit_is_part_of_what_is_remembered(kernels):
    memory = X.clone()
    assert torch.equal(softmax(memory, backend="kernels"), torch.softmax(memory, -1))
    assert torch.allclose(softmax(torch._neg_view(memory), backend="kernels"), torch.softmax(-memory, -1))


def test_a_condition_is_judged_on_what_the_kernel_gets(kernels, monkeypatch):
    """Rows of 16 bytes in x, of 12 in the copy that the layout needs."""
    ladder = {"plain": Implementation(kernels.softmax, "", requires=(Aligned("x"),), layout={"x": "contiguous"})}
    monkeypatch.setattr(registered, "variants", lambda name, op: ladder)
    assert "has a stride of 3 elements" in str(dispatch.explain("softmax", torch.zeros(4, 16)[:, ::4][:, :3]))
    assert dispatch.which("softmax", torch.zeros(4, 17)[:, 1::4][:, :4], backend="kernels") == "kernels/plain"


def test_autocast_is_off_inside_of_a_call(kernels, monkeypatch):
    seen = []

    def note(x, axis, scale):
        seen.append(torch.is_autocast_enabled("cpu"))
        return x.clone()

    ladder = {"plain": Implementation(note, "")}
    monkeypatch.setattr(registered, "variants", lambda name, op: ladder)
    with torch.autocast("cpu"):
        softmax(X, backend="kernels")
        assert torch.is_autocast_enabled("cpu")
    assert seen == [False]


def test_a_decision_can_be_pickled(kernels):
    decision = dispatch.explain("softmax", X, scale=2.0)
    again = pickle.loads(pickle.dumps(decision))
    assert str(again) == str(decision) and again.call.spec is decision.call.spec
