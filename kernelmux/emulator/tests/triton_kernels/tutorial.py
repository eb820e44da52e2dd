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


@triton.jit
def dot_kernel(x, w, y, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """A tile of rows by one vector: terms of both signs cancel, and threads hold each sum several times."""
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    mask = columns < n
    values = tl.load(x + rows[:, None] * n + columns[None, :], mask=mask[None, :], other=0.0)
    factors = tl.load(w + columns, mask=mask, other=0.0)
    tl.store(y + rows, tl.sum(values * factors[None, :], 1).to(y.dtype.element_ty))


@triton.jit
def pairs_kernel(x, y, n, BLOCK: tl.constexpr):
    """A program that stores two of its values to each place."""
    columns = tl.arange(0, BLOCK)
    values = tl.load(x + columns, mask=columns < n, other=0.0)
    tl.store(y + columns // 2, values, mask=columns < n)
