"""Triton kernels of this family; imported where they are launched, so that the family is known without Triton."""

import triton
import triton.language as tl


@triton.jit
def row_maximum(out_ptr, x_ptr, scale, N, BLOCK: tl.constexpr):
    """max(scale * x) of each row, into a buffer of whatever dtype it was given."""
    cols = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64)
    z = tl.load(x_ptr + row * N + cols, mask=cols < N, other=0.0).to(tl.float32) * scale
    top = tl.max(tl.where(cols < N, z, -float("inf")), 0)
    tl.store(out_ptr + row, top.to(out_ptr.dtype.element_ty))
