"""Order and shape of tiles: sort, scan, gather, histogram, join, split, permute."""

import triton
import triton.language as tl


@triton.jit
def sort_kernel(x_ptr, up_ptr, down_ptr, top_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    offs_m, offs_n = tl.arange(0, M), tl.arange(0, N)
    tile = offs_m[:, None] * N + offs_n[None, :]
    x = tl.load(x_ptr + tile)
    tl.store(up_ptr + tile, tl.sort(x))
    tl.store(down_ptr + tile, tl.sort(x, descending=True))
    tl.store(top_ptr + offs_m[:, None] * K + tl.arange(0, K)[None, :], tl.topk(x, K))


@triton.jit
def flip_kernel(x_ptr, rows_ptr, columns_ptr, M: tl.constexpr, N: tl.constexpr):
    tile = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + tile)
    tl.store(rows_ptr + tile, tl.flip(x, 0))
    tl.store(columns_ptr + tile, tl.flip(x, 1))


@triton.jit
def affine(a, b, c, d):
    """x -> c (a x + b) + d."""
    return a * c, b * c + d


@triton.jit
def scan_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    """Running sums, running products, and the recurrence y = x y + 1 as a scan of pairs."""
    tile = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + tile)
    tl.store(out_ptr + tile, tl.cumsum(x, AXIS, reverse=REVERSE))
    tl.store(out_ptr + M * N + tile, tl.cumprod(x, AXIS, reverse=REVERSE))
    _, y = tl.associative_scan((x, tl.full((M, N), 1, x.dtype)), AXIS, affine, reverse=REVERSE)
    tl.store(out_ptr + 2 * M * N + tile, y)


@triton.jit
def histogram_kernel(x_ptr, out_ptr, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0)
    tl.store(out_ptr + tl.arange(0, BINS), tl.histogram(x, BINS, mask=offs < n))


@triton.jit
def gather_kernel(x_ptr, index_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    tile = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out_ptr + tile, tl.gather(tl.load(x_ptr + tile), tl.load(index_ptr + tile), AXIS))


@triton.jit
def rearrange_kernel(x_ptr, y_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    """Every way of putting two M x N tiles together, and back: each result at its own place of out."""
    SIZE: tl.constexpr = M * N
    offs_m, offs_n = tl.arange(0, M), tl.arange(0, N)
    tile = offs_m[:, None] * N + offs_n[None, :]
    x, y = tl.load(x_ptr + tile), tl.load(y_ptr + tile)
    flat = tl.arange(0, 2 * SIZE)
    tl.store(out_ptr + flat, tl.reshape(tl.interleave(x, y), (2 * SIZE,)))
    tl.store(out_ptr + 2 * SIZE + flat, tl.reshape(tl.permute(tl.join(x, y), (2, 1, 0)), (2 * SIZE,)))
    a, b = tl.split(tl.reshape(x, (M, N // 2, 2)))
    half = offs_m[:, None] * (N // 2) + tl.arange(0, N // 2)[None, :]
    tl.store(out_ptr + 4 * SIZE + half, a)
    tl.store(out_ptr + 4 * SIZE + SIZE // 2 + half, b)
    deep = tl.trans(tl.reshape(x, (2, M // 2, N)), (1, 2, 0))  # [M / 2, N, 2]
    tl.store(out_ptr + 5 * SIZE + tl.arange(0, SIZE), tl.ravel(deep))
    row = tl.sum(tl.where(offs_m[:, None] == 1, x, tl.zeros_like(x)), 0)
    tl.store(out_ptr + 6 * SIZE + tile, tl.broadcast_to(tl.expand_dims(row, 0), (M, N)))


@triton.jit
def cat_kernel(x_ptr, y_ptr, out_ptr, REORDER: tl.constexpr, N: tl.constexpr):
    offs = tl.arange(0, N)
    both = tl.cat(tl.load(x_ptr + offs), tl.load(y_ptr + offs), can_reorder=REORDER)
    tl.store(out_ptr + tl.arange(0, 2 * N), both)


@triton.jit
def permute4_kernel(
    x_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """(A, B, C, D) -> (C, A, D, B)."""
    x = tl.reshape(tl.load(x_ptr + tl.arange(0, A * B * C * D)), (A, B, C, D))
    tl.store(out_ptr + tl.arange(0, A * B * C * D), tl.reshape(tl.permute(x, (2, 0, 3, 1)), (A * B * C * D,)))


@triton.jit
def pair_of(a, b):
    return tl.where(a > b, a, b), tl.where(a > b, b, a)


@triton.jit
def pairs_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    top, low = tl.map_elementwise(pair_of, tl.load(x_ptr + offs), tl.load(y_ptr + offs))
    tl.store(out_ptr + offs, top)
    tl.store(out_ptr + N + offs, low)
