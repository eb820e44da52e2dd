"""`bind`: resolved once; every call is compared with what was bound, and gives what the ordinary call gives."""

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward
from torch.fx.experimental.proxy_tensor import make_fx

import kernelmux as kx
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.description import Backend, Implementation
from kernelmux.registry.call import dispatch
from kernelmux.registry.choice import precedence, warn_once
from kernelmux.registry.errors import ArgumentError, EmulationWarning, UnknownName, UnsupportedError
from kernelmux.registry.spec.conditions import Aligned

X = torch.linspace(-2, 2, 12).reshape(3, 4)


@pytest.fixture
def kernels(monkeypatch):
    """A backend that reads memory as a kernel does, wants contiguous rows, and has a variant for aligned ones."""
    seen = []

    def softmax(x, axis, scale):
        seen.append(x)
        plain = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())
        return torch.softmax(plain.detach() * scale, axis).contiguous()

    def backward(y, grad, axis, scale):
        return registered.variants("torch_ref", "softmax_backward")["exact"].fn(y, grad, axis, scale)

    ladder = {
        "any": Implementation(fn=softmax, idea="any rows", layout={"x": "contiguous"}),
        "aligned": Implementation(fn=softmax, idea="wide", requires=(Aligned("x", 16),), layout={"x": "contiguous"}),
    }
    reverse = {"any": Implementation(fn=backward, idea="as torch")}
    own = Backend("kernels", "memory only", 90, lambda device: None)
    before = (registered._packages(), registered.backend, registered.unavailable, registered.variants)
    packages, backend, unavailable, variants = before
    ladders = {"softmax": ladder, "softmax_backward": reverse}
    monkeypatch.setattr(registered, "_packages", lambda: {**packages, "kernels": "fake"})
    monkeypatch.setattr(registered, "backend", lambda name: own if name == "kernels" else backend(name))
    monkeypatch.setattr(registered, "unavailable", lambda n, d: None if n == "kernels" else unavailable(n, d))
    monkeypatch.setattr(
        registered, "variants", lambda n, op: ladders.get(op, {}) if n == "kernels" else variants(n, op)
    )
    monkeypatch.setattr(registered, "implements", lambda n, op: n != "kernels" or op in ladders)
    dispatch._plans.clear()
    yield seen
    dispatch._plans.clear()


def test_it_gives_what_the_call_gives():
    weight = torch.rand(4)
    for op, tensors, scalars in (
        ("softmax", (X,), {}),
        ("softmax", (X,), {"axis": 0, "scale": 2}),
        ("layer_norm", (X, weight), {"eps": 1e-3}),
        ("layer_norm", (X, weight, weight), {}),
        ("add", (X, X), {}),
    ):
        bound = kx.bind(op, like=tensors, **scalars)
        assert torch.equal(bound(*tensors), getattr(kx, op)(*tensors, **scalars))
    assert torch.equal(kx.bind("softmax", like=X)(X), kx.softmax(X))
    assert torch.equal(kx.bind("layer_norm", like=(X, weight, None))(X, weight), kx.layer_norm(X, weight))


def test_only_what_the_public_call_returns_comes_back():
    logits, target = torch.randn(5, 9), torch.tensor([0, 8, -100, 3, 3])
    bound = kx.bind("cross_entropy", like=(logits, target), reduction="sum")
    assert torch.equal(bound(logits, target), kx.cross_entropy(logits, target, reduction="sum"))
    with torch.autocast("cpu"):  # the slow way, with the same result
        assert torch.equal(bound(logits, target), kx.cross_entropy(logits, target, reduction="sum"))


def test_it_says_what_it_is():
    bound = kx.bind("softmax", like=(X,), scale=0.5)
    assert repr(bound) == "<softmax bound to torch_ref/exact: x fp32[3, 4] on cpu, axis=1, scale=0.5>"
    assert bound.name == "torch_ref/exact"
    assert bound.explain().chosen.name == "torch_ref/exact" and "cuda/online" in str(bound.explain())


def test_every_error_of_the_call_comes_when_it_is_bound():
    with pytest.raises(ArgumentError, match="softmax: axis: expected -2 <= axis < 2"):
        kx.bind("softmax", like=(X,), axis=2)
    with pytest.raises(UnknownName, match='did you mean "softmax"'):
        kx.bind("softmx", like=(X,))
    with pytest.raises(UnknownName, match='did you mean "torch_ref"'):
        kx.bind("softmax", like=(X,), backend="torch_reff")
    with pytest.raises(TypeError, match="rms_norm: missing a required argument: 'weight'"):
        kx.bind("rms_norm", like=(X,))
    with pytest.raises(ArgumentError, match="bind: softmax: x: expected it in like, got it by name"):
        kx.bind("softmax", like=(), x=X)
    with pytest.raises(TypeError, match="dim"):
        kx.bind("softmax", like=(X,), dim=0)
    with pytest.raises(ArgumentError, match=r"bind: softmax: like: expected its tensors in order, \(x\), got"):
        kx.bind("softmax", like=(X, X))
    with pytest.raises(ArgumentError, match="expected tensors in memory outside of a trace, got x of Tensor on meta"):
        kx.bind("softmax", like=(X.to("meta"),))


def test_a_call_that_the_backend_cannot_run_is_refused_when_it_is_bound(kernels):
    unaligned = torch.zeros(13)[1:].view(3, 4)
    with pytest.raises(UnsupportedError, match="no requested backend can run this call"):
        kx.bind("softmax", like=(unaligned,), backend="kernels/aligned")


def test_other_tensors_are_refused_with_what_was_bound():
    bound = kx.bind("softmax", like=(X,))
    expected = r"softmax, bound: x: expected fp32\[3, 4\] on cpu as it was bound, got "
    others: tuple[tuple[Any, str], ...] = (
        (torch.zeros(3, 5), r"fp32\[3, 5\] on cpu"),
        (torch.zeros(12), r"fp32\[12\] on cpu"),
        (X.double(), r"fp64\[3, 4\] on cpu"),
        (torch.zeros(4, 3).t(), r"fp32\[3, 4\] strides \(1, 3\) on cpu"),
        (torch.zeros(13)[1:].view(3, 4), r"fp32\[3, 4\] 4 bytes off a multiple of 16 on cpu"),
        (torch._neg_view(X), r"fp32\[3, 4\] negative view on cpu"),
        (X.clone().requires_grad_(), r"fp32\[3, 4\] that requires a gradient on cpu"),
        (5, "5"),
        (None, "None"),
    )
    for other, got in others:
        with pytest.raises(ArgumentError, match=expected + got + ": bind it anew, or call kernelmux.softmax"):
            bound(other)
    with pytest.raises(TypeError):
        bound(X, X)


@pytest.mark.filterwarnings("ignore")  # torch's own, of prototypes
def test_a_nested_tensor_is_an_error_and_not_the_end_of_the_process():
    bound = kx.bind("softmax", like=(X,))
    with pytest.raises(ArgumentError, match="softmax, bound: x: expected"):
        bound(torch._nested_tensor_from_mask(torch.ones(1, 2, 3), torch.ones(1, 2, dtype=torch.bool)))


@pytest.mark.parametrize("name", ["any", "torch_ref"])
def test_a_tensor_without_memory_never_reaches_a_kernel(kernels, name):
    bound = kx.bind("softmax", like=(X,), backend="kernels/any" if name == "any" else name)
    bound(X), bound(X)
    freed = X.clone()
    freed.untyped_storage().resize_(0)
    for other, got in ((freed, "a storage that was freed"), (torch._efficientzerotensor(3, 4), "zeros without memory")):
        with pytest.raises(
            ArgumentError, match=rf"softmax, bound: x: expected fp32\[3, 4\] on cpu in memory, got .*{got}"
        ):
            bound(other)
    with pytest.raises(ArgumentError, match="softmax, bound: x: expected"):
        bound(X.to_sparse())


def test_what_differs_in_nothing_that_matters_runs():
    row = torch.randn(1, 4)
    bound = kx.bind("softmax", like=(row,))
    odd = torch.randn(4, 1).t()  # strides (1, 1): those of an axis of length 1 say nothing
    assert odd.stride() != row.stride() and torch.equal(bound(odd), torch.softmax(odd, -1))
    bound = kx.bind("softmax", like=(X,))
    assert torch.equal(bound(torch.nn.Parameter(X, requires_grad=False)), kx.softmax(X))
    with torch.inference_mode():
        assert torch.equal(bound(X), kx.softmax(X))
    with torch.no_grad():
        assert torch.equal(bound(X.clone().requires_grad_()), kx.softmax(X))


def test_an_unaligned_tensor_is_refused_where_an_aligned_one_was_bound_and_not_the_reverse(kernels):
    unaligned = torch.zeros(13)[1:].view(3, 4).copy_(X)
    bound = kx.bind("softmax", like=(X,), backend="kernels")
    assert bound.name == "kernels/aligned"
    with pytest.raises(ArgumentError, match="4 bytes off"):
        bound(unaligned)
    bound = kx.bind("softmax", like=(unaligned,), backend="kernels")
    assert bound.name == "kernels/any" and torch.equal(bound(unaligned), bound(X))


def test_copies_are_made_as_in_the_call(kernels):
    bound = kx.bind("softmax", like=(X.t(),), backend="kernels")
    assert torch.equal(bound(X.t()), torch.softmax(X.t(), -1)) and kernels[-1].is_contiguous()
    negative = kx.bind("softmax", like=(torch._neg_view(X),), backend="kernels")
    assert torch.equal(negative(torch._neg_view(X)), torch.softmax(-X, -1))


def test_gradients_are_those_of_the_call_and_never_lost(kernels):
    leaf = X.clone().requires_grad_()
    bound = kx.bind("softmax", like=(leaf,), backend="kernels")
    bound(leaf).pow(2).sum().backward()
    again = X.clone().requires_grad_()
    torch.softmax(again, -1).pow(2).sum().backward()
    torch.testing.assert_close(leaf.grad, again.grad)
    assert not bound(X).requires_grad
    with torch.no_grad():
        frozen = kx.bind("softmax", like=(leaf,), backend="kernels")
        assert not frozen(leaf).requires_grad
    with pytest.raises(ArgumentError, match=r"got fp32.* that requires a gradient"):
        frozen(leaf)


def test_what_was_bound_without_gradients_compares_parameters_quickly(kernels, monkeypatch):
    leaf = torch.nn.Parameter(X.clone())
    with torch.no_grad():
        bound = kx.bind("softmax", like=(leaf,), backend="kernels")
        monkeypatch.setattr(type(bound), "_compare", lambda *_: pytest.fail("looked closer"))
        assert torch.equal(bound(leaf), torch.softmax(X, -1))


def test_the_choice_stays():
    bound = kx.bind("softmax", like=(X,), backend="torch_ref")
    with kx.use("cuda"):
        bound(X)
        assert bound.name == "torch_ref/exact"
    precedence.set_default("softmax", "cuda")
    try:
        bound(X)
    finally:
        precedence.set_default("softmax", None)


def test_an_emulated_backend_is_announced_and_emulated():
    warn_once._emulating.discard("cuda")
    with pytest.warns(EmulationWarning, match="cuda") as caught:
        bound = kx.bind("softmax", like=(X,), backend="cuda")
    assert caught[0].filename == __file__
    torch.testing.assert_close(bound(X), torch.softmax(X, -1))


@pytest.mark.parametrize("inside", [False, True])
def test_what_autocast_does_to_the_operators_of_torch_changes_no_dtype(inside):
    """An operator that autocast leaves alone is made of some that it does not."""
    grad_out, w = torch.randn(1, 2, 3, 3), torch.randn(2, 1, 3, 3)
    want = kx.conv2d_backward_input(grad_out, w, backend="torch_ref")
    bound = kx.bind("conv2d_backward_input", (grad_out, w), "torch_ref")
    with torch.autocast("cpu"):
        if inside:
            bound = kx.bind("conv2d_backward_input", (grad_out, w), "torch_ref")
        for _ in range(2):
            assert torch.equal(bound(grad_out, w), want)
    assert torch.equal(bound(grad_out, w), want)


def test_autocast_changes_nothing_in_silence():
    product = kx.bind("matmul", like=(X, X.t()))
    with torch.autocast("cpu"):
        with pytest.raises(ArgumentError, match="matmul, bound: autocast turns a from fp32 to bf16: call it outside"):
            product(X, X.t())
        with pytest.raises(ArgumentError, match="bind: matmul: autocast turns a from fp32 to bf16: bind it outside"):
            kx.bind("matmul", like=(X, X.t()))
        low = X.bfloat16()
        assert kx.bind("matmul", like=(low, low.t()))(low, low.t()).dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore")  # torch's own decompositions
def test_what_traces_sees_an_operator_of_torch(kernels):
    bound = kx.bind("softmax", like=(X,), backend="kernels")
    graph = make_fx(lambda x: bound(x) + 1)(X)
    assert "kernelmux.softmax" in graph.code and "backend = 'kernels/aligned'" in graph.code
    with forward.dual_level(), pytest.raises(UnsupportedError, match="carries a forward derivative"):
        bound(forward.make_dual(X, X))


def test_it_compiles_without_a_break():
    bound = kx.bind("softmax", like=(X,), backend="torch_ref")
    compiled = torch.compile(lambda x: bound(x) * 2, fullgraph=True, backend="eager")
    assert torch.equal(compiled(X), torch.softmax(X, -1) * 2)


def test_an_unchecked_call_compares_nothing(kernels, monkeypatch):
    bound = kx.bind("softmax", like=(X,), backend="kernels", check=False)
    monkeypatch.setattr(type(bound), "_rest", lambda *_: pytest.fail("compared"))
    wider = torch.randn(7, 9)
    for x in (X, X + 1, wider, wider[:, 1:], X.double()):
        assert torch.equal(bound(x), torch.softmax(x, -1))
    assert repr(bound).endswith("scale=1.0, unchecked>") and bound.name == "kernels/aligned"
    leaf = X.clone().requires_grad_()
    kx.bind("softmax", like=(leaf,), backend="kernels", check=False)(leaf).square().sum().backward()
    want = X.clone().requires_grad_()
    torch.softmax(want, -1).square().sum().backward()
    torch.testing.assert_close(leaf.grad, want.grad)
    with pytest.raises(ArgumentError, match="bind: softmax: check: expected True or False, got 0"):
        kx.bind("softmax", like=(X,), check=0)  # type: ignore[arg-type]


def test_an_unchecked_call_is_counted_and_compiles():
    bound = kx.bind("softmax", like=(X,), backend="torch_ref", check=False)
    with kx.record() as log:
        bound(X), bound(X)
    assert log.calls == 2
    compiled = torch.compile(lambda x: bound(x) * 2, fullgraph=True, backend="eager")
    assert torch.equal(compiled(X), torch.softmax(X, -1) * 2)


def test_the_tensors_are_not_kept():
    x = torch.zeros(3, 4)
    there = weakref.ref(x)
    bound = kx.bind("softmax", like=(x,))
    bound(x)
    del x
    assert there() is None


def lines(call: Callable[[], Any]) -> int:
    """How many lines of Python a call runs: unlike its time, the same on a busy machine."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def test_a_bound_call_costs_less_than_the_call(monkeypatch):
    """After the first calls, with an implementation that does nothing."""
    nothing = Implementation(fn=lambda x, axis, scale: x, idea="nothing")
    monkeypatch.setattr(registered, "variants", lambda name, op: {"nothing": nothing})
    dispatch._plans.clear()
    bound = kx.bind("softmax", like=(X,), backend="torch_ref")
    calls = (lambda: bound(X), lambda: kx.softmax(X, backend="torch_ref"))
    for call in calls * 4:
        call()
    fewer, plain = map(lines, calls)
    assert 0 < fewer < 0.6 * plain
    dispatch._plans.clear()
