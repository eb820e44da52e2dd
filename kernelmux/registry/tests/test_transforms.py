"""Derivatives by torch.func, forward mode and batched gradients: right, or refused in our words, and never dropped."""

import pytest
import torch
from torch.autograd import forward_ad

import kernelmux as kx
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.errors import ArgumentError, UnsupportedError

KERNELS = [name for name in ("triton", "cuda") if not registered.unavailable(name, torch.device("cpu"))]
pytestmark = pytest.mark.filterwarnings("ignore")  # of the emulator, and of fallbacks in chains
X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
Y = torch.softmax(X, -1)
WANT = Y * (X - (Y * X).sum(-1, keepdim=True))  # the derivative of softmax at X along X
CALLS = {"function": kx.softmax, "operator": lambda x, backend: torch.ops.kernelmux.softmax(x, backend=backend)}
LACK = r"softmax: x carries a forward derivative .*which kernels do not compute.*such as torch_ref"


def by_transform(softmax, backend):
    """The derivative of softmax at X along X."""
    return torch.func.jvp(lambda x: softmax(x, backend=backend), (X,), (X,))[1]


def by_level(softmax, backend):
    """The same by dual tensors."""
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(softmax(forward_ad.make_dual(X, X), backend=backend)).tangent


@pytest.mark.parametrize("way", [by_transform, by_level])
@pytest.mark.parametrize("call", CALLS)
def test_a_forward_derivative_is_computed_by_torch_or_refused(way, call):
    chain = ",".join([*KERNELS, "torch_ref"])
    for backend in ("torch_ref", chain):
        torch.testing.assert_close(way(CALLS[call], backend), WANT)
    for backend in KERNELS:
        with pytest.raises(UnsupportedError, match="carries a forward derivative"):
            way(CALLS[call], backend)


@pytest.mark.skipif(not KERNELS, reason="no backend with kernels works here")
def test_a_strict_chain_does_not_fall_back_for_a_forward_derivative():
    with kx.use([KERNELS[0], "torch_ref"], strict=True), pytest.raises(UnsupportedError, match=LACK):
        by_transform(lambda x, backend: kx.softmax(x), None)


def test_a_compiled_graph_does_not_drop_a_forward_derivative():
    torch._dynamo.reset()
    run = torch.compile(lambda: by_transform(kx.softmax, "torch_ref"), backend="aot_eager")
    torch.testing.assert_close(run(), WANT)


@pytest.mark.parametrize("backend", ["torch_ref", *KERNELS])
def test_gradients_of_operators_of_torch_under_torch_func_eager_and_compiled(backend):
    def loss(x):
        return torch.ops.kernelmux.softmax(x, backend=backend).square().sum()

    want = torch.func.grad(lambda x: torch.softmax(x, -1).square().sum())(X)
    torch.testing.assert_close(torch.func.grad(loss)(X), want)
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(X), want)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(torch.func.grad(loss), fullgraph=True, backend="aot_eager")(X), want)


@pytest.mark.parametrize("backend", ["torch_ref", *KERNELS])
@pytest.mark.parametrize("matmul", [kx.matmul, torch.ops.kernelmux.matmul], ids=["function", "operator"])
def test_the_inner_of_two_levels_hands_on_what_the_outer_one_differentiates(matmul, backend):
    def outer(product):
        def inner(u):
            return torch.func.grad(lambda v: product(u, v).square().sum())(X.T.contiguous()).square().sum()

        return torch.func.grad(inner)(X)

    want = outer(torch.matmul)  # sums of large terms that cancel, in an order that depends on the CPU
    got = outer(lambda u, v: matmul(u, v, backend=backend))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5 * want.abs().max().item())


@pytest.mark.parametrize("backend", ["torch_ref", *KERNELS])
def test_several_incoming_gradients_at_once(backend):
    x, g = X.clone().requires_grad_(), torch.randn(4, 3, 8)
    (got,) = torch.autograd.grad(kx.softmax(x, backend=backend), x, g, is_grads_batched=True)
    (want,) = torch.autograd.grad(torch.softmax(x, -1), x, g, is_grads_batched=True)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("backend", ["torch_ref", *KERNELS])
def test_nested_tensors_are_refused_in_our_words(backend):
    nested = torch.nested.nested_tensor([X[:2], X], layout=torch.jagged)
    with pytest.raises(ArgumentError, match="x: expected a strided tensor, got a nested tensor"):
        kx.softmax(nested, backend=backend)


def test_a_call_without_memory_keeps_the_wish_for_a_gradient():
    x = X.to("meta").requires_grad_()
    kx.softmax(x).sum().backward()
    assert x.grad is not None and x.grad.shape == X.shape


@pytest.mark.skipif(not KERNELS, reason="no backend with kernels works here")
def test_a_node_of_autograd_has_the_name_of_its_operator():
    y = kx.softmax(X.clone().requires_grad_(), backend=KERNELS[0])
    assert y.grad_fn is not None and y.grad_fn.name() == "kernelmux_softmaxBackward"
