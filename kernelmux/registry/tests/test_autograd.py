"""Autograd on kernels: what a call leaves in torch's graph, which backend its backward runs on, and what is refused."""

import threading

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import kernelmux as kx
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.errors import UnsupportedError
from kernelmux.registry.interop import autograd
from kernelmux.registry.spec.gradient import Gradient

KERNELS = [name for name in ("triton", "cuda") if not registered.unavailable(name, torch.device("cpu"))]
pytestmark = pytest.mark.filterwarnings("ignore:.*on the emulator")


def leaf(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.fixture
def ran(monkeypatch):
    """Operator and backend of every call, in order, as the choice was made."""
    seen = []
    made = dispatch.plan_of

    def note(call, decision, *rest):
        seen.append((call.spec.name, decision.chosen.backend))
        return made(call, decision, *rest)

    monkeypatch.setattr(dispatch, "plan_of", note)
    dispatch._plans.clear()
    yield seen
    dispatch._plans.clear()


@pytest.mark.parametrize("backend", KERNELS)
def test_the_backward_runs_where_the_forward_was_asked_to_run(ran, backend):
    """In a scope that is closed by then, by a call argument, and on a thread that has no scope."""
    x = leaf(3, 9)
    with kx.use(backend):
        y = kx.softmax(x)
    y.square().sum().backward()
    z = kx.softmax(x, backend=[backend, "torch_ref"]).square().sum()
    thread = threading.Thread(target=z.backward)
    thread.start()
    thread.join()
    assert ran == [("softmax", backend), ("softmax_backward", backend)] * 2


@pytest.mark.parametrize("backend", KERNELS)
def test_attention_and_its_gradient_run_on_one_backend(ran, backend):
    q, k = leaf(1, 2, 5, 16), leaf(1, 1, 7, 16, seed=1)
    with kx.use(backend):
        kx.attention(q, k, k, causal=True).sum().backward()
    assert ran == [("attention", backend), ("attention_backward", backend)]
    (g,) = torch.autograd.grad(kx.attention(q, k, k, backend=backend).square().sum(), q, create_graph=True)
    with pytest.raises(UnsupportedError, match="attention: its gradient cannot be differentiated again"):
        g.sum().backward()


def test_a_variant_of_the_forward_is_none_of_the_backward(ran):
    for name in KERNELS:
        first = next(iter(registered.variants(name, "softmax")))
        kx.softmax(leaf(3, 9), backend=f"{name}/{first}").sum().backward()
        assert ran[-1] == ("softmax_backward", name)


@pytest.mark.parametrize("backend", KERNELS)
def test_gradients_add_up_hooks_see_them_and_a_graph_can_be_used_again(backend):
    x, w = leaf(4, 33), leaf(33, seed=1)
    seen = []
    x.register_hook(lambda g: seen.append(g.clone()))
    y = kx.rms_norm(x, w, backend=backend)
    y.sum().backward(retain_graph=True)
    once = x.grad.clone(), w.grad.clone()
    y.sum().backward()
    assert torch.equal(x.grad, 2 * once[0]) and torch.equal(w.grad, 2 * once[1])
    assert torch.equal(seen[0], once[0])
    want = torch.autograd.grad(kx.rms_norm(x, w, backend="torch_ref").sum(), (x, w))
    torch.testing.assert_close(once, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", KERNELS)
def test_a_checkpointed_call_gives_the_same_gradients(backend):
    x = leaf(4, 33)

    def block(x):
        return kx.silu(kx.softmax(x, backend=backend), backend=backend)

    plain = torch.autograd.grad(block(x).square().sum(), x)
    again = torch.autograd.grad(checkpoint(block, x, use_reentrant=False).square().sum(), x)
    assert torch.equal(plain[0], again[0])


@pytest.mark.parametrize("backend", KERNELS)
def test_a_checkpointed_function_that_opens_its_scope_runs_again_there(backend):
    x, w = leaf(4, 33), leaf(33, seed=1)

    @kx.use(backend)
    def block(x):
        return kx.rms_norm(x, w)

    y = checkpoint(block, x, use_reentrant=False)
    with kx.record() as log:
        y.square().sum().backward()
    assert {row.variant.partition("/")[0] for row in log.entries if row.operator == "rms_norm"} == {backend}


@pytest.mark.parametrize("backend", KERNELS)
def test_an_output_without_a_gradient_counts_as_zeros_and_saved_ones_have_none(backend):
    x, r, w = leaf(3, 17), leaf(3, 17, seed=1), leaf(17, seed=2)
    _, total = kx.add_rms_norm(x, r, w, backend=backend)
    gx, gr = torch.autograd.grad(total.sum(), (x, r))
    assert torch.equal(gx, torch.ones_like(x)) and torch.equal(gr, gx)
    loss, lse = dispatch.outputs("cross_entropy", leaf(3, 17), torch.arange(3), backend=backend)
    assert loss.requires_grad and not lse.requires_grad


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("backend", KERNELS)
def test_a_gradient_that_is_returned_is_a_constant_and_serves_that_of_the_loss(backend, reduction):
    x, target = leaf(5, 17), torch.tensor([3, -100, 0, 16, 2])
    loss, g = kx.cross_entropy_with_gradient(x, target, reduction=reduction, backend=backend)
    assert loss.requires_grad and not g.requires_grad
    expected = torch.nn.functional.cross_entropy(x, target, reduction=reduction)
    (want,) = torch.autograd.grad(expected.sum(), x)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(g, want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.autograd.grad(3 * loss.sum(), x)[0], 3 * g)


@pytest.mark.parametrize("backend", KERNELS)
def test_what_is_made_of_a_constant_output_is_not_differentiated_again(backend):
    x = leaf(3, 9)
    loss, _ = kx.cross_entropy_with_gradient(x, torch.arange(3), backend=backend)
    (g,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(UnsupportedError, match="cannot be differentiated again: it takes grad_logits for constant"):
        g.square().sum().backward()


@pytest.mark.parametrize("backend", KERNELS)
def test_only_what_is_asked_for_has_a_gradient(backend):
    x, w = leaf(3, 17), leaf(17, seed=1)
    for wanted in ((x,), (w,)):
        others = [t.detach() if all(t is not k for k in wanted) else t for t in (x, w)]
        found = torch.autograd.grad(kx.rms_norm(*others, backend=backend).sum(), wanted)
        assert [g.shape for g in found] == [t.shape for t in wanted]
    with torch.no_grad():
        assert kx.rms_norm(x, w, backend=backend).grad_fn is None


@pytest.mark.parametrize("backend", KERNELS)
def test_a_second_derivative_is_refused_where_no_operator_gives_it_and_there_where_one_does(backend):
    x = leaf(3, 9)
    (g,) = torch.autograd.grad(kx.softmax(x, backend=backend).square().sum(), x, create_graph=True)
    with pytest.raises(
        UnsupportedError, match=r"softmax: its gradient cannot be differentiated again: softmax_backward"
    ):
        g.sum().backward()
    a, b = leaf(3, 4), leaf(4, 5, seed=1)
    (g,) = torch.autograd.grad(kx.matmul(a, b, backend=backend).square().sum(), a, create_graph=True)
    (second,) = torch.autograd.grad(g.sum(), b)
    (g,) = torch.autograd.grad((a @ b).square().sum(), a, create_graph=True)
    torch.testing.assert_close(second, torch.autograd.grad(g.sum(), b)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", KERNELS)
def test_an_operator_without_a_gradient_says_what_to_do(backend):
    x, g = leaf(3, 9), torch.ones(3, 9)
    with pytest.raises(UnsupportedError) as caught:
        kx.softmax_backward(g, x, backend=backend)
    assert (
        "y requires a gradient, and softmax_backward has no gradient (a gradient itself: torch_ref differentiates it):"
        ' call it under torch.no_grad(), pass y.detach(), or use backend="torch_ref"' in str(caught.value)
    )
    cos = leaf(5, 4)
    with pytest.raises(UnsupportedError, match="cos requires a gradient, and rope has a gradient for x alone"):
        kx.rope(leaf(1, 1, 5, 8), cos, cos.detach(), backend=backend)
    assert kx.argmax(x, backend=backend).dtype == torch.int64  # an index: nothing to differentiate


@pytest.mark.parametrize("backend", KERNELS)
def test_an_input_that_was_changed_since_is_an_error(backend):
    x = leaf(3, 9)
    y = x * 1
    z = kx.silu(y, backend=backend)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_a_node_keeps_what_the_gradient_reads_and_no_more():
    def kept(op, wanted):
        return autograd.kept(op, tuple(wanted.split()))

    assert kept("add", "x y") == ((), ())
    assert kept("softmax", "x") == (("y",), ())
    assert kept("rms_norm", "x weight") == (("x", "weight"), ())
    assert kept("reduce_sum", "x") == ((), ("x",))  # the shape of x alone
    assert kept("matmul", "a b") == (("a", "b"), ())
    assert kept("matmul", "a") == (("b",), ("a",))
    assert kept("cross_entropy", "logits") == (("logits", "target", "lse"), ())
    assert kept("linear", "x weight bias") == (("x", "weight", "z"), ("bias",))
    assert kept("linear", "x") == (("weight", "z"), ("x", "bias"))  # frozen weights: no activations
    assert kept("linear", "weight") == (("x", "z"), ("weight", "bias"))
    assert kept("attention", "q k v") == (("q", "k", "v", "y", "lse"), ())


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize(
    ("op", "shapes", "wanted", "ran"),
    [
        ("linear", ((3, 4), (5, 4), (5,)), "x", ["matmul"]),
        ("linear", ((3, 4), (5, 4), (5,)), "bias", ["reduce_sum"]),
        ("matmul", ((2, 3, 4), (4, 5)), "b", ["matmul"]),
        ("conv2d", ((1, 2, 5, 5), (3, 2, 3, 3), (3,)), "weight", ["conv2d_backward_weight"]),
    ],
)
def test_for_a_frozen_tensor_nothing_is_computed(op, shapes, wanted, ran, backend):
    names = [i.name for i in catalog.spec(op).inputs]
    given = [leaf(*shape).requires_grad_(name == wanted) for name, shape in zip(names, shapes, strict=False)]
    y = getattr(kx, op)(*given, backend=backend)
    with kx.record() as log:
        y.sum().backward()
    assert [entry.operator for entry in log.entries] == ran
    assert [x.grad is not None for x in given] == [name == wanted for name in names[: len(given)]]


@pytest.mark.parametrize("op", [op for op in catalog.names() if isinstance(catalog.spec(op).gradient, Gradient)])
def test_what_is_kept_is_what_the_operator_of_gradients_takes(op):
    spec = catalog.spec(op)
    named = {*autograd.kept(op, spec.gradient.tensors)[0], *(i.name for i in spec.scalars)}
    assert {i.name for i in catalog.spec(spec.gradient.op).inputs if not i.name.startswith("grad_")} <= named


@pytest.mark.parametrize("backend", ["torch_ref", *KERNELS])
@pytest.mark.parametrize(("batch", "rows", "keys"), [(1, 5, 0), (1, 0, 5), (0, 5, 5), (1, 5, 2)])
def test_attention_of_nothing_and_of_queries_that_see_nothing_has_gradients(backend, batch, rows, keys):
    q, k, v = leaf(batch, 2, rows, 16), leaf(batch, 1, keys, 16, seed=1), leaf(batch, 1, keys, 16, seed=2)
    y = kx.attention(q, k, v, causal=True, backend=backend)
    unseen = max(rows - keys, 0)
    assert torch.equal(y[:, :, :unseen], torch.zeros(batch, 2, unseen, 16))
    found = torch.autograd.grad(y.square().sum(), (q, k, v))
    assert [g.shape for g in found] == [x.shape for x in (q, k, v)] and all(g.isfinite().all() for g in found)
    assert not found[0][:, :, :unseen].any()
