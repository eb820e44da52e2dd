"""Triton kernels of this family; imported where they are launched, so that the family is known without Triton."""

import triton
import triton.language as tl


@triton.jit
def scale_after_maximum(out_ptr, x_ptr, scale, N, BLOCK: tl.constexpr):
    """The maximum of x stands in for that of scale * x, which is the minimum for a negative scale."""
    cols = tl.arange(0, BLOCK)
    offs = tl.program_id(0).to(tl.int64) * N + cols
    x = tl.load(x_ptr + offs, mask=cols < N, other=-float("inf")).to(tl.float32)
    p = tl.where(cols < N, tl.exp((x - tl.max(x, 0)) * scale), 0.0)
    tl.store(out_ptr + offs, (p / tl.sum(p, 0)).to(out_ptr.dtype.element_ty), mask=cols < N)


@triton.jit
def scaled_padding(out_ptr, x_ptr, scale, N, BLOCK: tl.constexpr):
    """The padding is -inf before it is scaled: a negative scale makes it the maximum, and zero makes it NaN."""
    cols = tl.arange(0, BLOCK)
    offs = tl.program_id(0).to(tl.int64) * N + cols
    z = tl.load(x_ptr + offs, mask=cols < N, other=-float("inf")).to(tl.float32) * scale
    p = tl.exp(z - tl.max(z, 0))
    tl.store(out_ptr + offs, (p / tl.sum(p, 0)).to(out_ptr.dtype.element_ty), mask=cols < N)


@triton.jit
def polynomial(out_ptr, x_ptr, a, b, c, d, numel, BLOCK: tl.constexpr):
    """Horner's rule; what is wrong is in what the launch passes."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < numel).to(tl.float32)
    y = ((a * x + b) * x + c) * x + d
    tl.store(out_ptr + offs, y.to(out_ptr.dtype.element_ty), mask=offs < numel)
