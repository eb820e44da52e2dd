"""Copies of operands that TMA cannot read where they lie, for their lines begin at no multiples of 16 bytes."""

import torch

from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, cdiv, ctype, next_power
from kernelmux.backends.cuda.matmul._choice import operand
from kernelmux.registry.util.batch_strides import merged
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__, "matmul_lines.cu")
LINE = 128  # bytes, at multiples of which the lines of a copy begin
THREADS, VECTOR = 256, 16  # of a block; bytes that a thread stores at a time


def padded(x: torch.Tensor, k_axis: int) -> torch.Tensor:
    """A copy of matrices whose lines start at multiples of 128 bytes.

    Lines run along K (axis 0 or 1) where that is contiguous, along the other axis where it is not; of one row or column,
    which may be either, too.
    """
    down = operand(layout(x), k_axis).k_major == (k_axis == 0)
    made = _copy(x.mT if down else x)
    return made.mT if down else made


def _copy(x: torch.Tensor) -> torch.Tensor:
    length, unit = x.shape[-1], LINE // x.element_size()
    y = x.new_empty(*x.shape[:-1], cdiv(length, unit) * unit)
    launch = _launch(layout(x), y.shape[-1])
    if launch:
        launch(x, y)
    else:
        y[..., :length].copy_(x)
    return y[..., :length]


@remembered
def _launch(x: Layout, pitch: int) -> BoundLaunch | None:
    """The copy to lines of this pitch; None if it takes more than one stride to walk the matrices.

    H200, bf16, us by vectors, by stores of 4 bytes and by torch: 26496 x 11751 299.5, 332.6 and 715, 4097 x 4097 23.8, 26.0
    and 45.2, 2432 x 4829 18.1, 22.7 and 33.5.
    """
    axes = merged((n, stride) for n, stride in zip(x.shape[:-2], x.strides[:-2], strict=True))
    if len(axes) > 1:
        return None
    (rows, length), (count, apart) = x.shape[-2:], axes[0] if axes else (1, 0)
    vectors = pitch * x.dtype.itemsize // VECTOR
    across = min(max(8, next_power(cdiv(vectors, 4))), THREADS)
    units = min((4, 3, 2), key=lambda n: cdiv(vectors, n * across) * n)
    pieces = cdiv(vectors, units * across)
    signature = "x* y* lines:i64 pieces:i32 length:i32 pitch:i32 rows:i32 ld:i64 apart:i64"
    kernel = SOURCE.kernel("matmul_lines", signature, ELEMENT=ctype(x.dtype), UNITS=units, ACROSS=across)
    blocks = cdiv(rows * count, THREADS // across) * pieces
    return kernel.bind(blocks, THREADS, rows * count, pieces, length, pitch, rows, x.strides[-2], apart)
