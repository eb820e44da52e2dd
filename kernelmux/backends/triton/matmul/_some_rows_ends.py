"""How the sums of tiles of c^T leave: ended and through shared memory, or in fp32 as parts that another kernel ends.

Pieces are as many rows of c as the last instruction has, 16 often. A warpgroup writes several of them before it waits for
those before.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from kernelmux.backends.triton._launch.hopper import copy_out, copy_out_wait
from kernelmux.backends.triton.matmul._epilogue import activated, biased
from kernelmux.backends.triton.matmul._specialised_ends import _halves, leave_turned


@gluon.jit
def _write(pieces, x, FIRST: gl.constexpr, PIECE: gl.constexpr):
    """The columns of x, as the rows of pieces from FIRST on."""
    if x.shape[1] == PIECE:
        pieces.index(FIRST).permute((1, 0)).store(x)
    else:
        left, right = _halves(x)
        _write(pieces, left, FIRST, PIECE)
        _write(pieces, right, FIRST + x.shape[1] // PIECE // 2, PIECE)


@gluon.jit
def _store_turned(c_desc, m, n, x, pieces, FIRST: gl.constexpr, PIECE: gl.constexpr):
    copy_out_wait(0)
    _write(pieces, x.to(pieces.dtype), FIRST, PIECE)
    fence_async_shared()
    for piece in gl.static_range(x.shape[1] // PIECE):
        copy_out(c_desc, [n + piece * PIECE, m], pieces.index(FIRST + piece))


@gluon.jit
def end_turned(
    c_desc, bias_ptr, z_desc, parts_ptr, m, n, acc, M, N, pieces, SPLIT: gl.constexpr, PART: gl.constexpr,
    BIAS: gl.constexpr, ACTIVATION: gl.constexpr, PIECE: gl.constexpr, SLOTS: gl.constexpr,
):  # fmt: skip
    """Ends the sums acc at (m, n) of c^T [M, N], SLOTS pieces of this warpgroup at a time; or leaves them in a part,
    where K is shared."""
    if SPLIT > 1:
        leave_turned(parts_ptr, acc, m, n, M, N)
    elif acc.shape[1] <= PIECE * SLOTS:
        acc = biased(
            acc, bias_ptr, m + gl.arange(0, acc.shape[0], layout=gl.SliceLayout(1, acc.type.layout)), M, BIAS, True
        )
        if ACTIVATION != "none":
            _store_turned(z_desc, m, n, acc, pieces, PART * SLOTS, PIECE)
        _store_turned(c_desc, m, n, activated(acc, ACTIVATION), pieces, PART * SLOTS, PIECE)
    else:
        left, right = _halves(acc)
        end_turned(
            c_desc, bias_ptr, z_desc, parts_ptr, m, n, left, M, N, pieces, SPLIT, PART, BIAS, ACTIVATION, PIECE, SLOTS
        )
        end_turned(
            c_desc, bias_ptr, z_desc, parts_ptr, m, n + acc.shape[1] // 2, right, M, N, pieces, SPLIT, PART, BIAS,
            ACTIVATION, PIECE, SLOTS,
        )  # fmt: skip
