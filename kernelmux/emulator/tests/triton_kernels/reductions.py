"""Reductions over either axis of a tile, and along a row of any length."""

import triton
import triton.language as tl


@triton.jit
def reductions_kernel(x_ptr, out_ptr, index_ptr, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    """sum, max, min and the largest magnitude to out; argmax and argmin, the first of equals, to index."""
    x = tl.load(x_ptr + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    LEFT: tl.constexpr = M * N // (M if AXIS == 0 else N)
    offs = tl.arange(0, LEFT)
    top, where_top = tl.max(x, AXIS, return_indices=True)
    low, where_low = tl.min(x, AXIS, return_indices=True)
    tl.store(out_ptr + offs, tl.sum(x, AXIS))
    tl.store(out_ptr + LEFT + offs, top)
    tl.store(out_ptr + 2 * LEFT + offs, low)
    tl.store(out_ptr + 3 * LEFT + offs, tl.reduce(x, AXIS, larger_magnitude))
    tl.store(index_ptr + offs, where_top)
    tl.store(index_ptr + LEFT + offs, where_low)
    tl.store(index_ptr + 2 * LEFT + offs, tl.argmax(x, AXIS))
    tl.store(index_ptr + 3 * LEFT + offs, tl.argmin(x, AXIS))


@triton.jit
def any_argmax_kernel(x_ptr, index_ptr, M: tl.constexpr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(index_ptr + tl.arange(0, M), tl.argmax(x, 1, tie_break_left=False))


@triton.jit
def larger_magnitude(a, b):
    """The positive one of two that differ in sign only: threads combine in different orders and have to agree."""
    first = (tl.abs(a) > tl.abs(b)) | ((tl.abs(a) == tl.abs(b)) & (a > b))
    return tl.where(first, a, b)


@triton.jit
def bits_kernel(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out_ptr, tl.xor_sum(x, 0))
    tl.store(out_ptr + 1, tl.reduce_or(x, 0))
    tl.store(out_ptr + 2, tl.sum(x, 0))


@triton.jit
def moments_kernel(x_ptr, out_ptr, N: tl.constexpr):
    """Mean and spread of pairs (mean, squares, count), joined as Welford joins them."""
    x = tl.load(x_ptr + tl.arange(0, N))
    mean, squares, count = tl.reduce((x, tl.zeros_like(x), tl.full((N,), 1.0, tl.float32)), 0, join_moments)
    tl.store(out_ptr, mean)
    tl.store(out_ptr + 1, squares / count)


@triton.jit
def join_moments(mean_a, squares_a, count_a, mean_b, squares_b, count_b):
    count = count_a + count_b
    delta = mean_b - mean_a
    return mean_a + delta * count_b / count, squares_a + squares_b + delta * delta * count_a * count_b / count, count


@triton.jit
def sum_rows_kernel(x_ptr, out_ptr, stride_x, N, BLOCK: tl.constexpr):
    """One partial sum per program, joined by an atomic."""
    row, part = tl.program_id(0), tl.program_id(1)
    offs = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < N, other=0.0).to(tl.float32)
    tl.atomic_add(out_ptr + row, tl.sum(x, 0))


@triton.jit
def transpose_kernel(x_ptr, out_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, TRANS: tl.constexpr):
    """TRANS: the tile is turned in registers and stored as it lies; otherwise the store is strided."""
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    x = tl.load(x_ptr + offs_m[:, None] * N + offs_n[None, :], mask=mask)
    if TRANS:
        tl.store(out_ptr + offs_n[:, None] * M + offs_m[None, :], tl.trans(x), mask=tl.trans(mask))
    else:
        tl.store(out_ptr + offs_n[None, :] * M + offs_m[:, None], x, mask=mask)


@triton.jit
def copy_column_kernel(x_ptr, out_ptr, M, stride_xm, column, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs * stride_xm + column, mask=offs < M), mask=offs < M)
