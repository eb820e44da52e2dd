"""rms_norm as tutorials write it: the product of `tl.sum(x * x)` is fused into the sum."""

import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x, weight, y, n, eps, BLOCK: tl.constexpr):
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    mask = columns < n
    values = tl.load(x + row * n + columns, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(values * values) / n
    scaled = values / tl.sqrt(mean + eps) * tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + row * n + columns, scaled, mask=mask)


@triton.jit
def racing_kernel(x, y, n, BLOCK: tl.constexpr):
    """Every program stores its own sum to one place."""
    columns = tl.arange(0, BLOCK)
    values = tl.load(x + tl.program_id(0) * n + columns, mask=columns < n, other=0.0)
    tl.store(y, tl.sum(values))
