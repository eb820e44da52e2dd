"""Operands of 8 bits as the copy engine reads them: K contiguous, in lines that begin at multiples of 16 bytes."""

from math import gcd

import torch

from kernelmux.backends.cuda._families.byte_products import LINE
from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, cdiv, next_power
from kernelmux.backends.cuda.transpose import transpose_vectorized
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__, "fp8_matmul_lines.cu")
THREADS = 256


def k_contiguous(x: torch.Tensor, k_axis: int) -> torch.Tensor:
    """The operand with K contiguous, `x` itself if it is: tensor cores take bytes in no other order.

    Two passes over 8192 x 8192 take 44 us on an H200, where the product takes 700.
    """
    if x.stride(k_axis) == 1:
        return x
    return transpose_vectorized(x).t() if k_axis == 0 else transpose_vectorized(x.t())


def readable(x: torch.Tensor, k_axis: int) -> bool:
    """Whether the copy engine reads the operand where it lies: lines along K that begin at multiples of 16 bytes."""
    if x.stride(k_axis) != 1 or x.data_ptr() & 15:
        return False
    return not x.stride(1 - k_axis) & 15 or x.shape[1 - k_axis] == 1


def repays(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether tiles that the copy engine reads are worth copies of operands that it cannot: where products by bytes take
    ten microseconds or more, at about 28e6 in each."""
    (M, K), N = a.shape, b.shape[1]
    if K % 16 == 0 and all(x.stride(axis) != 1 or readable(x, axis) for x, axis in ((a, 1), (b, 0))):
        return True
    return cdiv(M, 128) * cdiv(N, 128) * K >= 2**14


def on_lines(x: torch.Tensor, k_axis: int) -> torch.Tensor:
    """The operand in lines along K that begin at multiples of 16 bytes, as the copy engine reads it; `x` if it is so."""
    x = k_contiguous(x, k_axis)
    if readable(x, k_axis):
        return x
    lines_of_x = x if k_axis else x.t()
    y = x.new_empty(lines_of_x.shape[0], cdiv(x.shape[k_axis], LINE) * LINE)
    _copy(layout(lines_of_x), y.shape[1])(lines_of_x, y)
    y = y[:, : x.shape[k_axis]]
    return y if k_axis else y.t()


@remembered
def _copy(x: Layout, pitch: int) -> BoundLaunch:
    """Of lines along the last axis to such of so many bytes."""
    count, length = x.shape
    words = cdiv(length, 4)
    across = min(max(32, next_power(cdiv(words, 4))), THREADS)
    pieces = cdiv(words, 4 * across)
    signature = "x* y* lines:i64 pieces:i32 length:i32 from:i64 to:i64"
    kernel = SOURCE.kernel("fp8_matmul_lines", signature, VECTOR=gcd(4, x.offset, x.strides[0], length), ACROSS=across)
    return kernel.bind(cdiv(count, THREADS // across) * pieces, THREADS, count, pieces, length, x.strides[0], pitch)
