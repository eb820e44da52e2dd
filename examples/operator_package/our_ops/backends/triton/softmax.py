"""softmax of short rows: a program per row, which stays in registers."""

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._rows import rounded_product
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost

LONGEST = 4096


@triton.jit
def _softmax(x, y, n, inner, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    at = row // inner * inner * n + row % inner + columns.to(tl.int64) * inner
    z = rounded_product(tl.load(x + at, mask=columns < n, other=0.0).to(tl.float32), scale)
    z = tl.where(columns < n, z, float("-inf"))
    weights = tl.exp(z - tl.max(z))
    tl.store(y + at, weights / tl.sum(weights), mask=columns < n)


def softmax(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    y, n = torch.empty_like(x), x.shape[axis]
    if x.numel():
        inner = x.shape[axis + 1 :].numel() if axis + 1 else 1
        _softmax[(x.numel() // n,)](x, y, n, inner, scale, BLOCK=triton.next_power_of_2(n))
    return y


VARIANTS = {
    "short": Implementation(
        fn=softmax,
        idea="a program per row, whose numbers stay in registers",
        requires=(AtMost("N", LONGEST),),
        layout={"x": "contiguous"},
    )
}
