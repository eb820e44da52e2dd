"""A sum by atomic additions to a zeroed buffer, declared as what it is: not the same bits in every call."""

import torch
import triton
import triton.language as tl

from kernelmux.registry.backend import Implementation

OP = "reduce_sum"
FUNCTION = "reduce_sum"
NEEDS = "triton"


@triton.jit
def _add_up(x, total, n, inner, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    place = (row // inner) * n * inner + at * inner + row % inner
    tl.atomic_add(total + row, tl.sum(tl.load(x + place, mask=at < n, other=0.0).to(tl.float32), 0))


def _sum(x, axis, keepdim):
    x = x.contiguous()
    shape = list(x.shape)
    n = x.numel() if axis is None else shape[axis]
    inner = 1 if axis is None else torch.Size(shape[axis + 1 :]).numel()
    kept = [1 if axis is None or i == axis else s for i, s in enumerate(shape)]
    final = kept if keepdim else [] if axis is None else shape[:axis] + shape[axis + 1 :]
    total = torch.zeros(final, dtype=torch.float32, device=x.device)
    if total.numel() and n:
        _add_up[(total.numel(), triton.cdiv(n, 128))](x, total, n, inner, BLOCK=128)
    return total.to(x.dtype)


reduce_sum = Implementation(fn=_sum, idea="atomic additions to a zeroed buffer", arithmetic="fp32", deterministic=False)
