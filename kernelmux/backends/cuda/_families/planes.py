"""fp32 for tensor cores of bf16 ("bf16x6"): three planes whose sum a number is, and six products of them for each product.

    a b = a3 b1 + a1 b3 + a2 b2 + a2 b1 + a1 b2 + a1 b1

What is left out is below 2^-25 of |a b|, so sums of them are as exact as those of fp32 products, as long as small terms
come first and short runs of terms are added up by themselves: a tensor core cuts its sums. XLA calls it BF16_BF16_F32_X6.
The kernel's side: planes.cu, and guard.cuh for numbers that planes cannot hold.
"""

import torch

from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, card, cdiv
from kernelmux.registry.util.batch_strides import merged
from kernelmux.registry.util.cards import Card, remembered

SOURCE = Source(__file__, "planes.cu")
THREADS, UNIT, LINE = 256, 8, 64  # of a block; elements of a store; elements of which planes have whole multiples
BLOCKS = 4  # for each multiprocessor
SCALE = 2.0**24  # of the planes


def plane_length(length: int) -> int:
    """Elements of each of the three planes of a line."""
    return cdiv(length, LINE) * LINE


def flags_for(x: torch.Tensor, operands: int = 1) -> torch.Tensor:
    """Words in which `split` says of so many operands whether there is a number that planes cannot hold."""
    return x.new_empty(operands * words(card(x)), dtype=torch.int32)


def split(x: torch.Tensor, flags: torch.Tensor, index: int = 0) -> torch.Tensor:
    """fp32 x [... R, L], whose last axis is contiguous, as bf16 [... R, 3 * plane_length(L)], scaled by 2^24.

    flags: of `flags_for`; index: which of its operands this one is: those behind the first are split beside the one before
    them. Axes along which x is expanded have length 1.
    """
    x = x[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.stride()[:-2])]
    here, count = card(x), words(card(x))
    if len(_walk(x.shape[:-2], x.stride()[:-2])) > 1:
        x = x.contiguous()
    y = x.new_empty(*x.shape[:-1], 3 * plane_length(x.shape[-1]), dtype=torch.bfloat16)
    _launch(layout(x), here, index > 0)(x, y, flags[index * count : (index + 1) * count])
    return y


def words(card: Card) -> int:
    """How many words `split` writes of an operand."""
    return BLOCKS * card.processors


@remembered
def _launch(x: Layout, card: Card, follows: bool) -> BoundLaunch:
    """For matrices that one stride walks."""
    axes = _walk(x.shape[:-2], x.strides[:-2])
    (rows, length), (count, apart) = x.shape[-2:], axes[0] if axes else (1, 0)
    lines, plane = rows * count, plane_length(length)
    multiples = (x.strides[-2] if rows > 1 else 0, apart, length, x.offset // 4)
    vector = next(n for n in (4, 2, 1) if not any(number % n for number in multiples))
    kernel = SOURCE.kernel(
        "split_to_planes", "x* y* flags* units:i32 length:i32 plane:i32 rows:i32 ld:i64 apart:i64",
        VECTOR=vector, FOLLOWS=int(follows),
    )  # fmt: skip
    numbers = lines * plane // UNIT, length, plane, rows, x.strides[-2], apart
    return kernel.bind(words(card), THREADS, *numbers, follows=follows)


def _walk(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[tuple[int, ...]]:
    return merged(zip(shape, strides, strict=True))
