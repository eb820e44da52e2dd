"""Row-wise Triton kernels on both targets, against float64."""

import pytest
import torch

pytest.importorskip("triton")

from kernelmux.emulator.tests.near import BF16, assert_near
from kernelmux.emulator.tests.triton_kernels import rows as kernels

F = torch.nn.functional
pytestmark = pytest.mark.usefixtures("arch")

M, N = 6, 200


def rows(dtype: torch.dtype = torch.float32, n: int = N) -> torch.Tensor:
    torch.manual_seed(0)
    return (torch.randn(M, n) * 3).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("log", [False, True])
def test_softmax(dtype: torch.dtype, log: bool) -> None:
    x = rows(dtype, 256)[:, :N]
    out = torch.empty(M, N, dtype=dtype)
    kernels.softmax_kernel[(M,)](x, out, x.stride(0), N, 0.5, LOG=log, BLOCK=256, num_warps=4)
    scaled = x.double() * 0.5
    expected = torch.log_softmax(scaled, 1) if log else torch.softmax(scaled, 1)
    spread = scaled.amax(1, keepdim=True) - scaled  # a rounding of the exponent is one of that many units
    assert_near(out, expected, 8, 8 + spread if log else expected * (4 + spread))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("add", [False, True])
def test_rms_norm(dtype: torch.dtype, add: bool) -> None:
    x, residual, w = rows(dtype), rows(dtype).flip(0), torch.randn(N).to(dtype)
    out, total = torch.empty_like(x), torch.empty_like(x)
    kernels.rms_norm_kernel[(M,)](x, residual, w, out, total, N, 1e-6, ADD=add, BLOCK=256, num_warps=2)
    exact = x.double() + residual.double() * add
    if add:
        assert_near(total, exact, 1)
    assert_near(out, exact * torch.rsqrt(exact.square().mean(1, keepdim=True) + 1e-6) * w.double(), 16)


def test_layer_norm_and_its_gradient() -> None:
    x, w, b = rows(), torch.randn(N), torch.randn(N)
    out, mean, rstd = torch.empty_like(x), torch.empty(M), torch.empty(M)
    kernels.layer_norm_kernel[(M,)](x, w, b, out, mean, rstd, N, 1e-5, BLOCK=256)
    exact = [t.double().requires_grad_() for t in (x, w, b)]
    expected = F.layer_norm(exact[0], (N,), exact[1], exact[2], 1e-5)
    assert_near(out, expected.detach(), 16, expected.detach().abs() + b.abs() + 1)

    groups, grad = 2, torch.randn(M, N)
    grad_x, lock = torch.empty_like(x), torch.zeros(2 * groups, dtype=torch.int32)
    part_w, part_b = torch.empty(groups, N), torch.empty(groups, N)
    kernels.layer_norm_backward_kernel[(M,)](
        grad, x, w, mean, rstd, grad_x, part_w, part_b, lock, N, GROUPS=groups, BLOCK=256
    )
    expected.backward(grad.double())
    assert_near(grad_x, exact[0].grad, 32, (w * grad).abs().mean(1, keepdim=True) + (w * grad).abs())
    for part, leaf in zip((part_w, part_b), exact[1:], strict=True):
        sums = torch.empty(N)
        kernels.column_sums_kernel[(2,)](part, sums, groups, N, BLOCK_M=4, BLOCK_N=128, num_warps=1)
        assert_near(sums, leaf.grad, 32, 2 * M)


def test_cross_entropy_and_its_gradient() -> None:
    x, target = rows(torch.bfloat16), torch.tensor([0, 7, N - 1, -100, 3, 5])
    loss, lse, grad_x = torch.empty(M), torch.empty(M), torch.empty_like(x)
    kernels.cross_entropy_kernel[(M,)](x, target, loss, lse, N, -100, BLOCK=128)
    exact = x.double().requires_grad_()
    expected = F.cross_entropy(exact, target, reduction="none")
    assert_near(lse, torch.logsumexp(exact.detach(), 1), 16, 8)
    assert_near(loss, expected.detach(), 16, 16)

    grad = torch.randn(M)
    kernels.cross_entropy_backward_kernel[(M, 2)](grad, x, target, lse, grad_x, N, -100, BLOCK=128)
    expected.backward(grad.double())
    assert_near(grad_x, exact.grad, 64, grad[:, None].double())


@pytest.mark.parametrize(("dtype", "top"), [(torch.int8, 127), (torch.float8_e4m3fn, 448), (torch.float8_e5m2, 57344)])
def test_quantize_rows(arch: str, dtype: torch.dtype, top: int) -> None:
    if arch == "sm_80" and dtype == torch.float8_e4m3fn:
        pytest.skip("Triton has no e4m3 on sm_80")
    x = rows(torch.bfloat16)
    out, scale = torch.empty(M, N, dtype=dtype), torch.empty(M)
    kernels.quantize_rows_kernel[(M,)](x, out, scale, N, TOP=top, BLOCK=256)
    assert_near(scale, x.double().abs().amax(1) / top, 2)
    scaled = x.float() / scale[:, None]
    # The kernel divides approximately: a quotient next to the middle of two steps may go to either of them.
    nearest = [(scaled * (1 + shift * BF16 * 2**-12)) for shift in (-1, 0, 1)]
    allowed = [(t.round() if dtype == torch.int8 else t.clamp(-top, top)).to(dtype).float() for t in nearest]
    assert torch.stack([out.float() == t for t in allowed]).any(0).all()
