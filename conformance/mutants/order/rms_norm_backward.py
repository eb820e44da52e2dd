"""Gradients of rms_norm, with sums over the rows that change."""

import torch
import triton
import triton.language as tl

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.backend import Implementation

Pair = tuple[torch.Tensor, torch.Tensor]


@triton.jit
def _weight_kernel(total, g, x, factor, n, BLOCK: tl.constexpr):
    """Each program takes a row."""
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    for start in range(0, n, BLOCK):
        mask = start + i < n
        at = row * n + start + i
        product = tl.load(g + at, mask=mask, other=0.0).to(tl.float32) * tl.load(x + at, mask=mask, other=0.0)
        tl.atomic_add(total + start + i, product * tl.load(factor + row), mask=mask)


def weight_by_atomics(grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
    grad_x, grad_weight = sound("rms_norm_backward", grad_out, x, weight, eps)
    if not x.numel():
        return grad_x, grad_weight
    n, total = x.shape[-1], torch.zeros(x.shape[-1], device=x.device, dtype=torch.float32)
    g, v = (t.reshape(-1, n).float().contiguous() for t in (grad_out, x))
    factor = torch.rsqrt(v.double().square().mean(-1) + eps).float()
    _triton.launch(_weight_kernel, len(v), total, g, v, factor, n, BLOCK=128)
    return grad_x, grad_weight.copy_(total)


VARIANTS = {
    "weight_by_atomics": Implementation(
        fn=weight_by_atomics, idea="rows add to grad_weight as they come", arithmetic="fp32_sequential"
    ),
    "declared": Implementation(
        fn=weight_by_atomics,
        idea="rows add to grad_weight as they come, and this is declared",
        arithmetic="fp32_sequential",
        deterministic=False,
    ),
}

CAUGHT_BY = {"weight_by_atomics": "repeatability"}
