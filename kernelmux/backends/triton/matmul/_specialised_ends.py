"""How the sums of `specialised` leave: ended and through shared memory, or in fp32 as parts that another kernel ends."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from kernelmux.backends.triton._launch.hopper import copy_out, copy_out_wait
from kernelmux.backends.triton.matmul._blocked import tile_of
from kernelmux.backends.triton.matmul._epilogue import activated, biased

END_ROWS = 8  # of a tile, for a program that ends a part of it


@gluon.jit
def _store(
    c, batch, m, n, x, piece, M, N, c_line, c_apart, BATCHED: gl.constexpr, UNIT: gl.constexpr
):  # fmt: skip
    """x to (m, n), through shared memory of its size: c is a descriptor, or a pointer where c_line says how many times UNIT
    elements, which are stored at once, its rows are apart, and c_apart its matrices."""
    if c_line is None:
        copy_out_wait(0)
        flat = piece.reshape([x.shape[0], x.shape[1]]) if BATCHED else piece
        flat.store(x.to(piece.dtype))
        fence_async_shared()
        if BATCHED:
            copy_out(c, [batch, m, n], piece)
        else:
            copy_out(c, [m, n], piece)
    else:
        ACROSS: gl.constexpr = min(x.shape[1] // UNIT, 32)
        lines: gl.constexpr = gl.BlockedLayout([1, UNIT], [32 // ACROSS, ACROSS], [4, 1], [1, 0])
        piece.store(x.to(piece.dtype))
        rows = gl.expand_dims(m + gl.arange(0, x.shape[0], gl.SliceLayout(1, lines)), 1)
        columns = gl.expand_dims(n + gl.arange(0, x.shape[1], gl.SliceLayout(0, lines)), 0)
        at = rows.to(gl.int64) * c_line * UNIT + columns
        if BATCHED:
            at += batch.to(gl.int64) * c_apart * UNIT
        at = gl.max_contiguous(gl.multiple_of(c + at, [1, UNIT * 2]), [1, UNIT])
        inside = gl.max_constancy((rows < M) & (columns // UNIT < N // UNIT), [1, UNIT])
        gl.store(at, piece.load(lines), mask=inside)


@gluon.jit
def _halves(x):
    """The left and the right half of the columns."""
    return gl.split(gl.permute(gl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))


@gluon.jit
def end_sums(
    c_desc, bias_ptr, z_desc, batch, m, n, acc, M, N, piece, c_line, c_apart, BIAS: gl.constexpr,
    ACTIVATION: gl.constexpr, BATCHED: gl.constexpr, PIECE: gl.constexpr, UNIT: gl.constexpr,
):  # fmt: skip
    """Ends the sums acc at (m, n) of c, PIECE columns at a time: the rest of that memory is worth more in the ring, and
    what follows a product needs registers beside the sums."""
    if acc.shape[1] == PIECE:
        columns = n + gl.arange(0, acc.shape[1], layout=gl.SliceLayout(0, acc.type.layout))
        acc = biased(acc, bias_ptr, columns, N, BIAS)
        if ACTIVATION != "none":
            _store(z_desc, batch, m, n, acc, piece, M, N, c_line, c_apart, BATCHED, UNIT)
        _store(c_desc, batch, m, n, activated(acc, ACTIVATION), piece, M, N, c_line, c_apart, BATCHED, UNIT)
    else:
        left, right = _halves(acc)
        end_sums(
            c_desc, bias_ptr, z_desc, batch, m, n, left, M, N, piece, c_line, c_apart, BIAS, ACTIVATION, BATCHED, PIECE,
            UNIT,
        )  # fmt: skip
        end_sums(
            c_desc, bias_ptr, z_desc, batch, m, n + acc.shape[1] // 2, right, M, N, piece, c_line, c_apart, BIAS,
            ACTIVATION, BATCHED, PIECE, UNIT,
        )  # fmt: skip


@gluon.jit
def leave_turned(parts_ptr, acc, m, n, M, N):
    """The sums acc at (m, n) of a product [M, N] to its transpose."""
    rows = m + gl.arange(0, acc.shape[0], layout=gl.SliceLayout(1, acc.type.layout))[:, None]
    columns = n + gl.arange(0, acc.shape[1], layout=gl.SliceLayout(0, acc.type.layout))[None, :]
    gl.store(parts_ptr + columns.to(gl.int64) * M + rows, acc, mask=(rows < M) & (columns < N))


@triton.jit
def end_rest_kernel(
    parts_ptr, c_ptr, bias_ptr, z_ptr, M, N, first, left, SPLIT: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr, ROWS: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Adds parts [SPLIT, left, BLOCK_M, BLOCK_N] in order, and ends the tiles from `first` on; a program has a few rows."""
    tile_m, tile_n = tile_of(first + tl.program_id(1), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    within = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, BLOCK_N)
    offs = (tl.program_id(1) * BLOCK_M + within) * BLOCK_N + columns[None, :]
    acc = tl.load(parts_ptr + offs)
    for _ in tl.static_range(1, SPLIT):
        parts_ptr += left * BLOCK_M * BLOCK_N
        acc += tl.load(parts_ptr + offs)
    rows = tile_m * BLOCK_M + within
    columns += tile_n * BLOCK_N
    acc = biased(acc, bias_ptr, columns, N, BIAS)
    at = rows.to(tl.int64) * N + columns[None, :]
    inside = (rows < M) & (columns[None, :] < N)
    if ACTIVATION != "none":
        tl.store(z_ptr + at, acc.to(z_ptr.dtype.element_ty), mask=inside)
    tl.store(c_ptr + at, activated(acc, ACTIVATION).to(c_ptr.dtype.element_ty), mask=inside)
