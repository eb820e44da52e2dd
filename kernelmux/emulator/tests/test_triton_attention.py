"""Attention in Triton on both targets, against float64."""

import pytest
import torch

pytest.importorskip("triton")
from kernelmux.emulator.tests.near import BF16, FP16, FP32, assert_near
from kernelmux.emulator.tests.triton_kernels import attention as kernels

pytestmark = pytest.mark.usefixtures("arch")

UNITS = {torch.float16: FP16, torch.bfloat16: BF16}


def visible(m: int, n: int, causal: bool) -> torch.Tensor:
    return torch.ones(m, n, dtype=torch.bool).tril(n - m) if causal else torch.ones(m, n, dtype=torch.bool)


def probabilities(q: torch.Tensor, k: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
    s = (q @ k.transpose(-1, -2)) * scale
    return torch.softmax(s.masked_fill(~visible(q.shape[-2], k.shape[-2], causal), -torch.inf), -1)


@pytest.mark.parametrize(
    ("dtype", "causal", "m", "n", "per_group", "d", "block", "num_stages"),
    [
        (torch.float16, False, 80, 96, 1, 64, (64, 32), 1),
        (torch.bfloat16, True, 80, 100, 2, 64, (64, 64), 3),
        (torch.float16, True, 40, 40, 4, 32, (16, 16), 2),
    ],
    ids=str,
)
def test_forward(
    dtype: torch.dtype, causal: bool, m: int, n: int, per_group: int, d: int, block: tuple[int, int], num_stages: int
) -> None:
    torch.manual_seed(0)
    heads, scale = 4, d**-0.5
    q, k, v = (
        torch.randn(1, h, s, d).to(dtype) for h, s in ((heads, m), (heads // per_group, n), (heads // per_group, n))
    )
    o, lse = torch.empty_like(q), torch.empty(1, heads, m)
    kernels.attention_kernel[(-(-m // block[0]), heads)](
        q,
        k,
        v,
        o,
        lse,
        heads,
        m,
        n,
        scale,
        HEADS_PER_GROUP=per_group,
        CAUSAL=causal,
        BLOCK_M=block[0],
        BLOCK_N=block[1],
        D=d,
        num_stages=num_stages,
    )
    k, v = (x.double().repeat_interleave(per_group, 1) for x in (k, v))
    p = probabilities(q.double(), k, scale, causal)
    assert_near(o, p @ v, 2, p @ v.abs(), UNITS[dtype])  # the probabilities are rounded to the dtype of v
    s = (q.double() @ k.transpose(-1, -2) * scale).masked_fill(~visible(m, n, causal), -torch.inf)
    assert_near(lse, s.logsumexp(-1), 32, 8, FP32)


@pytest.mark.parametrize("causal", [False, True])
def test_backward_with_recomputation(causal: bool) -> None:
    torch.manual_seed(0)
    heads, s, d, scale = 2, 72, 32, 0.2
    q, k, v, grad = (torch.randn(heads, s, d).half() for _ in range(4))
    o, lse, delta = torch.empty_like(q), torch.empty(heads, s), torch.empty(heads, s)
    blocks = {"BLOCK_M": 64, "BLOCK_N": 32, "D": d}
    kernels.attention_kernel[(2, heads)](
        q, k, v, o, lse, heads, s, s, scale, HEADS_PER_GROUP=1, CAUSAL=causal, **blocks
    )
    kernels.delta_kernel[(2,)](o, grad, delta, heads * s, D=d, BLOCK_M=128)
    grad_q, grad_k, grad_v = (torch.empty_like(x) for x in (q, k, v))
    saved = (q, k, v, grad, lse, delta)
    kernels.grad_kv_kernel[(3, heads)](*saved, grad_k, grad_v, s, scale, CAUSAL=causal, **blocks)
    kernels.grad_q_kernel[(2, heads)](*saved, grad_q, s, scale, CAUSAL=causal, **blocks)

    exact = [x.double().requires_grad_() for x in (q, k, v)]
    p = probabilities(exact[0], exact[1], scale, causal)
    (p @ exact[2]).backward(grad.double())
    p, (eq, ek, ev), eg = p.detach(), (x.detach().abs() for x in exact), grad.double().abs()
    ds = p * (eg @ ev.transpose(-1, -2) + (eg * o.double().abs()).sum(-1, keepdim=True)) * scale  # magnitudes
    assert_near(grad_v, exact[2].grad, 3, p.transpose(-1, -2) @ eg, FP16)
    assert_near(grad_k, exact[1].grad, 3, ds.transpose(-1, -2) @ eq, FP16)
    assert_near(grad_q, exact[0].grad, 3, ds @ ek, FP16)


def test_decode_in_parts() -> None:
    torch.manual_seed(0)
    groups, heads, n, d, parts = 2, 3, 200, 64, 4
    q, k, v = (torch.randn(groups, s, d).bfloat16() for s in (heads, n, n))
    part, top, total = (
        torch.empty(groups, parts, heads, d),
        torch.empty(groups, parts, heads),
        torch.empty(groups, parts, heads),
    )
    o = torch.empty_like(q)
    kernels.decode_kernel[(groups, parts)](
        q, k, v, part, top, total, n, 0.125, HEADS=heads, PARTS=parts, BLOCK_N=32, D=d
    )
    kernels.combine_kernel[(groups, heads)](part, top, total, o, HEADS=heads, PARTS=parts, D=d, num_warps=1)
    p = probabilities(q.double(), k.double(), 0.125, False)
    assert_near(o, p @ v.double(), 2, p @ v.double().abs(), BF16)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope(interleaved: bool) -> None:
    s, h, d, base = 9, 2, 48, 10000.0
    x = torch.randn(s, h, d)
    out = torch.empty_like(x)
    kernels.rope_kernel[(s, h)](x, out, h, d, base, INTERLEAVED=interleaved, BLOCK=32, num_warps=1)
    angle = torch.arange(s).double()[:, None, None] * base ** (-2 * torch.arange(d // 2).double() / d)
    pairs = x.double().unflatten(-1, (d // 2, 2) if interleaved else (2, d // 2))
    a, b = pairs.unbind(-1 if interleaved else -2)
    turned = torch.stack((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()))
    expected = turned.permute(1, 2, 3, 0) if interleaved else turned.permute(1, 2, 0, 3)
    size = (
        torch.stack((a.abs() + b.abs(),) * 2).permute(1, 2, 3, 0)
        if interleaved
        else (a.abs() + b.abs()).repeat(1, 1, 2)
    )
    # The frequency is rounded a few times; a rounding of the angle is `position` units of the result.
    assert_near(out, expected.flatten(-2), 16, (1 + s) * size.reshape(s, h, d))
