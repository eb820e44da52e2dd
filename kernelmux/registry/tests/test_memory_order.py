"""Orders of axes in memory: which a tensor has, copies into another one, and gradients that lie as their inputs do."""

import pytest
import torch

import kernelmux as kx
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.util import memory_format
from kernelmux.registry.util.memory_format import laid, order

KERNELS = [name for name in ("triton", "cuda") if not registered.unavailable(name, torch.device("cpu"))]


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    dispatch._plans.clear()
    monkeypatch.setattr(memory_format, "WORTH", 0)
    yield
    dispatch._plans.clear()


def test_small_tensors_are_left_to_torch(monkeypatch):
    monkeypatch.setattr(memory_format, "WORTH", 2 * 4 * 5 * 8 * 4)
    x = torch.randn(2, 5, 4, 8).transpose(1, 2)
    wanted = order(x)
    assert wanted and order(x[:1]) is None
    x = x.contiguous()
    assert laid(x, wanted) is not x
    half = x.half()
    assert laid(half, wanted) is half


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (torch.empty(2, 5, 4, 8).transpose(1, 2), (0, 2, 1, 3)),
        (torch.empty(5, 4).t(), (1, 0)),
        (torch.empty(1, 5, 4, 8).transpose(1, 2), (0, 2, 1, 3)),
        (torch.empty(2, 5, 4, 8), None),
        (torch.empty(2, 1, 4, 8).transpose(1, 2), None),  # one row: the order says nothing
        (torch.empty(2, 5, 4, 8)[:, :3].transpose(1, 2), None),  # gaps
        (torch.empty(4, 1).expand(4, 3).t(), None),
        (torch.empty(2, 5, 4, dtype=torch.complex64).transpose(1, 2).conj(), None),
    ],
)
def test_the_order_of_what_is_dense(x, expected):
    assert order(x) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("columns", [1, 2, 6, 8, 64, 7])
def test_a_copy_has_the_same_bits_in_another_order(dtype, columns):
    like = torch.empty(2, 5, 4, columns, dtype=dtype).transpose(1, 2)
    x = torch.randn(like.shape).to(dtype)
    x[0, 0, 0, 0], x[1, 2, 3, 0] = float("nan"), -0.0
    wanted = order(like)
    assert wanted
    found = laid(x, wanted)
    bits = {4: torch.int32, 2: torch.int16}[dtype.itemsize]
    assert torch.equal(found.contiguous().view(bits), x.view(bits))
    assert found.stride() == like.stride() if columns * dtype.itemsize >= 4 and columns % 2 == 0 else found is x


def test_what_has_no_cheap_copy_stays():
    x = torch.randn(2, 4, 5, 8)
    assert laid(x[..., ::2], (0, 2, 1, 3)).stride() == x[..., ::2].stride()
    assert laid(x, (3, 0, 1, 2)) is x  # the last axis would not be the innermost
    off = torch.randn(2 * 4 * 5 * 8 + 1).bfloat16()[1:].view(2, 4, 5, 8)
    assert laid(off, (0, 2, 1, 3)) is off


def test_the_widest_elements_are_taken():
    wide = {n: memory_format._wide(torch.empty(3, 4, n, dtype=torch.bfloat16).transpose(0, 1)) for n in (64, 4, 2, 1)}
    assert wide == {64: torch.complex128, 4: torch.int64, 2: torch.int32, 1: None}


@pytest.mark.filterwarnings("ignore:.*on the emulator")
@pytest.mark.parametrize("backend", KERNELS)
def test_a_gradient_lies_as_its_input_does(backend):
    """So that the view behind a product copies nothing, whatever the kernel of the gradient wrote."""
    flat = torch.randn(2, 6, 4 * 8, requires_grad=True)
    heads = flat.unflatten(-1, (4, 8)).transpose(1, 2)
    heads.retain_grad()
    angles = torch.rand(6, 4)
    seen = []
    heads.register_hook(lambda g: seen.append(g.stride()))
    kx.rope(heads, angles.cos(), angles.sin(), backend=backend).square().sum().backward()
    assert seen == [heads.stride()]
    ours, flat.grad = flat.grad, None
    heads = flat.unflatten(-1, (4, 8)).transpose(1, 2)
    kx.rope(heads, angles.cos(), angles.sin(), backend="torch_ref").square().sum().backward()
    torch.testing.assert_close(ours, flat.grad)


@pytest.mark.filterwarnings("ignore:.*on the emulator")
@pytest.mark.parametrize("backend", KERNELS)
def test_only_the_gradients_of_permuted_inputs_are_copied(backend, monkeypatch):
    copied = []

    def noted(x, wanted):
        copied.append(wanted)
        return x

    monkeypatch.setattr(memory_format, "laid", noted)
    q = torch.randn(1, 2, 6, 16, requires_grad=True)
    v = torch.randn(1, 6, 2, 16, requires_grad=True).transpose(1, 2)
    kx.attention(q, q.detach(), v, backend=backend).sum().backward()
    assert copied == [(0, 2, 1, 3)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8])
@pytest.mark.parametrize("columns", [16, 12, 7])
@pytest.mark.parametrize("at", [0, 1])
def test_bits_are_copied_between_tensors_that_lie_otherwise(dtype, columns, at):
    x = torch.randint(-100, 100, (2, 3, 5, columns)).to(dtype)
    room = torch.zeros(2, 5, 8, columns, dtype=dtype)
    memory_format.copied(room.transpose(1, 2)[:, at : at + 3], x)
    assert room[:, :, at : at + 3].equal(x.transpose(1, 2)) and not room[:, :, at + 3 :].any()
    assert not room[:, :, :at].any()
    turned = torch.zeros(columns, 5, dtype=dtype)
    memory_format.copied(turned.t(), x[0, 0])
    assert turned.t().equal(x[0, 0])
