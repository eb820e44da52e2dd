"""The end of products of 8-bit operands whose work is divided among warps (in Gluon): sums are scaled and leave."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from kernelmux.backends.triton._families.byte_products import ABSENT, ONE
from kernelmux.backends.triton._launch.hopper import copy_out, copy_out_wait

ROWS = gl.constexpr(64)  # of a group of warps


@gluon.jit
def of_rows(scale_ptr, m, M, SCALE: gl.constexpr, layout: gl.constexpr):
    """Scales of the 64 rows from m on."""
    rows = m + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    if SCALE == ABSENT:
        return gl.full([ROWS], 1.0, gl.float32, gl.SliceLayout(1, layout))
    elif SCALE == ONE:
        return gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, layout)) + gl.load(scale_ptr)
    else:
        return gl.load(scale_ptr + rows, mask=rows < M, other=1.0)


@gluon.jit
def _of_columns(scale_ptr, n, N, WIDTH: gl.constexpr, SCALE: gl.constexpr, layout: gl.constexpr):
    """Scales of the WIDTH columns from n on."""
    if SCALE == ABSENT:
        return gl.full([WIDTH], 1.0, gl.float32, gl.SliceLayout(0, layout))
    elif SCALE == ONE:
        return gl.zeros([WIDTH], gl.float32, gl.SliceLayout(0, layout)) + gl.load(scale_ptr)
    else:
        columns = n + gl.arange(0, WIDTH, gl.SliceLayout(0, layout))
        return gl.load(scale_ptr + columns, mask=columns < N, other=0.0)


@gluon.jit
def plain_scales(scale, NUMBER: gl.constexpr):
    """Whether sums times these scales are normal numbers: such of fp8 have a size of 2^-32 to 2^63."""
    if NUMBER == gl.int32:
        return True
    else:
        return gl.max(gl.where((gl.abs(scale) >= 2.0**-62) & (gl.abs(scale) <= 2.0**62), 0, 1), 0) == 0


@gluon.jit
def _scaled(x, left, plain, scale_b_ptr, n, N, SCALE_B: gl.constexpr, layout: gl.constexpr):
    """x * left * right: left first where that is plain, else by the product of both where that is a normal number."""
    right = gl.expand_dims(_of_columns(scale_b_ptr, n, N, x.shape[1], SCALE_B, layout), 0)
    left = gl.expand_dims(left, 1)
    if plain:
        x = x * left * right
    else:
        both = left * right
        normal = (gl.abs(both) >= 2.0**-126) & (gl.abs(both) < float("inf"))
        one = gl.full([x.shape[0], x.shape[1]], 1.0, gl.float32, layout)
        x = x * gl.where(normal, both, left) * gl.where(normal, one, right)
    return x


@gluon.jit
def _halves(x):
    """The left and the right half of the columns."""
    return gl.split(gl.permute(gl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))


@gluon.jit
def _store(c, m, n, x, piece, M, N, MAPPED: gl.constexpr):
    """x to (m, n), through shared memory of its size: c is a descriptor, or a pointer where that cannot be written so."""
    if MAPPED:
        copy_out_wait(0)
        piece.store(x.to(piece.dtype))
        fence_async_shared()
        copy_out(c, [m, n], piece)
    else:
        lines: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
        piece.store(x.to(piece.dtype))
        rows = gl.expand_dims(m + gl.arange(0, x.shape[0], gl.SliceLayout(1, lines)), 1)
        columns = gl.expand_dims(n + gl.arange(0, x.shape[1], gl.SliceLayout(0, lines)), 0)
        gl.store(c + rows.to(gl.int64) * N + columns, piece.load(lines), mask=(rows < M) & (columns < N))


@gluon.jit
def end(
    c, x, left, plain, scale_b_ptr, m, n, M, N, piece, SCALE_B: gl.constexpr, layout: gl.constexpr,
    PIECE: gl.constexpr, MAPPED: gl.constexpr,
):  # fmt: skip
    """Scales the sums x, unless the results are integers, and stores them at (m, n), PIECE columns at a time."""
    if piece.dtype != gl.int32:
        x = _scaled(x.to(gl.float32), left, plain, scale_b_ptr, n, N, SCALE_B, layout)
    if x.shape[1] == PIECE:
        _store(c, m, n, x, piece, M, N, MAPPED)
    else:
        first, second = _halves(x)
        if x.shape[1] == 2 * PIECE:
            _store(c, m, n, first, piece, M, N, MAPPED)
            _store(c, m, n + PIECE, second, piece, M, N, MAPPED)
        else:
            one, two = _halves(first)
            three, four = _halves(second)
            _store(c, m, n, one, piece, M, N, MAPPED)
            _store(c, m, n + PIECE, two, piece, M, N, MAPPED)
            _store(c, m, n + 2 * PIECE, three, piece, M, N, MAPPED)
            _store(c, m, n + 3 * PIECE, four, piece, M, N, MAPPED)
