"""How a multiplier of `_specialised` writes its sums: as a box by the copy engine (TMA), line by line, or plane by plane.

The copy engine writes lines that begin at multiples of 16 bytes. The channels of a place do where their number is one of
`VECTOR`. Elsewhere threads write them, as many at once as all lines begin at multiples of. Planes are contiguous images.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from kernelmux.backends.triton._launch.hopper import copy_out, copy_out_wait, ring


@gluon.jit
def pieces_of(y, PARTS: gl.constexpr, PLACES: gl.constexpr, WIDTH: gl.constexpr, UNIT: gl.constexpr):
    """Shared memory for WIDTH channels of each multiplier, a half or a quarter: the rest of it is worth more in the ring.
    y: a descriptor, or a pointer if there is a UNIT."""
    if UNIT:
        layout: gl.constexpr = gl.NVMMASharedLayout(2 * WIDTH if WIDTH < 64 else 128, 16, 2)
        found = gl.allocate_shared_memory(y.dtype.element_ty, [PARTS, PLACES, WIDTH], layout)
    else:
        found = ring(y, PARTS)
    return found


@gluon.jit
def _sides(sums):
    """The left and the right half of the channels."""
    return gl.split(gl.permute(gl.reshape(sums, (sums.shape[0], 2, sums.shape[1] // 2)), (0, 2, 1)))


@gluon.jit
def cut(sums, COUNT: gl.constexpr):
    """One, two or four parts of the channels."""
    if COUNT == 1:
        found = (sums,)
    elif COUNT == 2:
        found = _sides(sums)
    else:
        left, right = _sides(sums)
        first, second = _sides(left)
        third, fourth = _sides(right)
        found = (first, second, third, fourth)  # type: ignore[assignment]
    return found


@gluon.jit
def store_box(y_desc, n, p, q, o, sums, piece):
    """Sums [places, channels] to the box of y at (n, p, q) from channel o on."""
    WIDTH: gl.constexpr = piece.shape[3]
    COUNT: gl.constexpr = sums.shape[1] // WIDTH
    flat = piece.reshape([sums.shape[0], WIDTH])
    parts = cut(sums, COUNT)
    for i in gl.static_range(COUNT):
        copy_out_wait(0)
        flat.store(parts[i].to(piece.dtype))
        fence_async_shared()
        copy_out(y_desc, [n, p, q, o + i * WIDTH], piece)


@gluon.jit
def store_planes(
    y_ptr, n, p, q, o, sums, images, rows, columns, out_channels, PART: gl.constexpr, BOX: gl.constexpr, UNIT: gl.constexpr
):  # fmt: skip
    """Sums [places, channels] to part PART of the BOX of contiguous images y [N O rows columns], at (n, p, q) from channel
    o on. UNIT: places of a row that are written at once, of which both columns and those of the box are a multiple."""
    PLACES: gl.constexpr = sums.shape[0]
    WIDTH: gl.constexpr = sums.shape[1] if sums.shape[1] < 64 else 64
    COUNT: gl.constexpr = sums.shape[1] // WIDTH
    ALONG: gl.constexpr = PLACES // UNIT if PLACES // UNIT < 32 else 32  # threads of a warp along places
    layout: gl.constexpr = gl.BlockedLayout([UNIT, 1], [ALONG, 32 // ALONG], [1, 4], [0, 1])
    place = PART * PLACES + gl.arange(0, PLACES, layout=gl.SliceLayout(1, layout))
    n += place // (BOX[1] * BOX[2])
    p += place // BOX[2] % BOX[1]
    q += place % BOX[2]
    units = columns // UNIT
    line = units * UNIT
    plane = units.to(gl.int64) * rows * UNIT
    # What the compiler does not see of sums of quotients and remainders: so many are side by side, and stored or not.
    first = gl.max_contiguous(gl.multiple_of(n * (out_channels * plane) + (p.to(gl.int64) * line + q), [UNIT]), [UNIT])
    inside = gl.max_constancy((n < images) & (p < rows) & (q // UNIT < units), [UNIT])
    parts = cut(sums.to(y_ptr.dtype.element_ty), COUNT)
    for i in gl.static_range(COUNT):
        c = o + i * WIDTH + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))
        at = y_ptr + (first[:, None] + (c * plane)[None, :])  # [PLACES, WIDTH]
        gl.store(at, gl.convert_layout(parts[i], layout), mask=inside[:, None] & (c < out_channels)[None, :])


@gluon.jit
def store_lines(
    y_ptr, n, p, q, o, sums, piece, images, rows, columns, out_channels, first_h, first_w, step_h, step_w,
    PART: gl.constexpr, BOX: gl.constexpr, UNIT: gl.constexpr,
):  # fmt: skip
    """Sums [places, channels] to part PART of the BOX of y, dense [N rows columns O], at (n, p, q) from channel o on.

    Place (p, q) is row first_h + p * step_h and column first_w + q * step_w of y. UNIT: channels that are written at once,
    of which their number is a multiple.
    """
    PLACES: gl.constexpr = piece.shape[0]
    WIDTH: gl.constexpr = piece.shape[1]
    COUNT: gl.constexpr = sums.shape[1] // WIDTH
    ACROSS: gl.constexpr = WIDTH // UNIT if WIDTH // UNIT < 32 else 32  # threads of a warp along a line
    layout: gl.constexpr = gl.BlockedLayout([1, UNIT], [32 // ACROSS, ACROSS], [4, 1], [1, 0])
    place = PART * PLACES + gl.arange(0, PLACES, layout=gl.SliceLayout(1, layout))
    n += place // (BOX[1] * BOX[2])
    p = first_h + (p + place // BOX[2] % BOX[1]) * step_h
    q = first_w + (q + place % BOX[2]) * step_w
    units = out_channels // UNIT
    line = ((n.to(gl.int64) * rows + p) * columns + q) * units * UNIT
    inside = (n < images) & (p < rows) & (q < columns)
    parts = cut(sums.to(piece.dtype), COUNT)
    for i in gl.static_range(COUNT):
        piece.store(parts[i])
        c = o + i * WIDTH + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, layout))
        at = y_ptr + (line[:, None] + c[None, :])  # [PLACES, WIDTH]
        gl.store(at, piece.load(layout), mask=inside[:, None] & (c // UNIT < units)[None, :])
