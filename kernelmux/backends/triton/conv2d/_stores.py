"""How a multiplier of `_specialised` writes its sums: as a box by the copy engine (TMA), or line by line.

The copy engine writes lines that begin at multiples of 16 bytes. The channels of a place do where their number is one of
`VECTOR`. Elsewhere threads write them, as many at once as all lines begin at multiples of.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from kernelmux.backends.triton._launch.hopper import copy_out, copy_out_wait, ring


@gluon.jit
def halves(y, PARTS: gl.constexpr, PLACES: gl.constexpr, BLOCK_O: gl.constexpr, UNIT: gl.constexpr):
    """Shared memory for half of the sums of each multiplier: the rest of it is worth more in the ring. y: a descriptor, or
    a pointer if there is a UNIT."""
    if UNIT:
        layout: gl.constexpr = gl.NVMMASharedLayout(BLOCK_O if BLOCK_O < 128 else 128, 16, 2)
        found = gl.allocate_shared_memory(y.dtype.element_ty, [PARTS, PLACES, BLOCK_O // 2], layout)
    else:
        found = ring(y, PARTS)
    return found


@gluon.jit
def _sides(sums):
    """The left and the right half of the channels."""
    return gl.split(gl.permute(gl.reshape(sums, (sums.shape[0], 2, sums.shape[1] // 2)), (0, 2, 1)))


@gluon.jit
def store_box(y_desc, n, p, q, o, sums, half):
    """Sums [places, channels] to the box of y at (n, p, q) from channel o on."""
    WIDTH: gl.constexpr = half.shape[3]
    flat = half.reshape([sums.shape[0], WIDTH])
    if sums.shape[1] == WIDTH:
        copy_out_wait(0)
        flat.store(sums.to(half.dtype))
        fence_async_shared()
        copy_out(y_desc, [n, p, q, o], half)
    else:
        left, right = _sides(sums)
        for side in gl.static_range(2):
            copy_out_wait(0)
            flat.store((left if side == 0 else right).to(half.dtype))
            fence_async_shared()
            copy_out(y_desc, [n, p, q, o + side * WIDTH], half)


@gluon.jit
def store_lines(
    y_ptr, n, p, q, o, sums, half, images, rows, columns, out_channels, first_h, first_w, step_h, step_w,
    PART: gl.constexpr, BOX: gl.constexpr, UNIT: gl.constexpr,
):  # fmt: skip
    """Sums [places, channels] to part PART of the BOX of y, dense [N rows columns O], at (n, p, q) from channel o on.

    Place (p, q) is row first_h + p * step_h and column first_w + q * step_w of y. UNIT: channels that are written at once,
    of which their number is a multiple.
    """
    PLACES: gl.constexpr = half.shape[0]
    WIDTH: gl.constexpr = half.shape[1]
    ACROSS: gl.constexpr = WIDTH // UNIT if WIDTH // UNIT < 32 else 32  # threads of a warp along a line
    layout: gl.constexpr = gl.BlockedLayout([1, UNIT], [32 // ACROSS, ACROSS], [4, 1], [1, 0])
    place = PART * PLACES + gl.arange(0, PLACES, layout=gl.SliceLayout(1, layout))
    n += place // (BOX[1] * BOX[2])
    p = first_h + (p + place // BOX[2] % BOX[1]) * step_h
    q = first_w + (q + place % BOX[2]) * step_w
    units = out_channels // UNIT
    line = ((n.to(gl.int64) * rows + p) * columns + q) * units * UNIT
    inside = (n < images) & (p < rows) & (q < columns)
    if sums.shape[1] == WIDTH:
        left = sums.to(half.dtype)
        right = left
    else:
        left, right = _sides(sums.to(half.dtype))
    for side in gl.static_range(sums.shape[1] // WIDTH):
        half.store(left if side == 0 else right)
        c = o + side * WIDTH + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))
        at = y_ptr + (line[:, None] + c[None, :])  # [PLACES, WIDTH]
        gl.store(at, half.load(layout), mask=inside[:, None] & (c // UNIT < units)[None, :])
