"""A few vectors by a weight on the FP32 pipes: each block owns a few rows of the weight, which it reads once."""

from kernelmux.backends.cuda._families.epilogue import PLAIN, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, cdiv, ctype, next_power

SOURCE = Source(__file__)


def launch(weight: Layout, x: Layout, end: EpilogueKind = PLAIN.ending, scaled: bool = False) -> BoundLaunch:
    """Of x [B, K] and weight [N, K], whose rows are contiguous, c [B, N], and what an epilogue wants. scaled: and a scale
    [N] or None."""
    (N, K), B = weight.shape, x.shape[0]
    rows, warps = block(K, weight.dtype.itemsize, B)
    kernel = SOURCE.kernel(
        "vectors", f"x* weight* {end.tensors} {'scale* ' * scaled}N:i32 K:i32 x_row:i64 weight_row:i64",
        WEIGHT=ctype(weight.dtype), ELEMENT=ctype(x.dtype), BATCH=B, ROWS=rows, WARPS=warps, FOLLOWS=1,
        WIDTH=_width(weight, x), **({"SCALED": 1} if scaled else {}), **end.macros,
    )  # fmt: skip
    return kernel.bind(cdiv(N, rows), 32 * warps, N, K, x.strides[0], weight.strides[0], follows=True)


def block(K: int, itemsize: int, vectors: int) -> tuple[int, int]:
    """Rows of a block, and its warps, which follow the length of the rows alone: they order the sums.

    H200, bf16, in one run: one vector and 14336 x 4096 take 33.8 us, 36.3 with four rows and four warps; 4096 x 14336 takes
    36.1, 37.2 with four and eight, 35.1 with one and sixteen, which takes 47.2 for four vectors where four and eight take
    38.1. Rows of less than 4096 elements are an access of each thread or two, too little for a block: 11264 x 2048 took 15
    us in a step of decoding by single rows, 11.9 by Triton. Bytes took 22.2 us with four and four, 24.0 with two and eight.
    """
    if itemsize != 2 or K < 2**11:
        return 4, 8 if K * itemsize >= 2**14 else 4
    if K < 2**12:
        return 4, 8
    return min(next_power(vectors), 4), 8


def _width(weight: Layout, x: Layout) -> int:
    """Elements per access: 16 bytes of the weight, or as many as every row of weight and x starts at a multiple of."""
    width = 16 // weight.dtype.itemsize
    while width > 1 and not all(_starts_at(width, operand) for operand in (weight, x)):
        width //= 2
    return width


def _starts_at(width: int, operand: Layout) -> bool:
    """Whether each row can be read `width` elements, or 16 bytes, at a time."""
    lines = operand.strides[0] if operand.shape[0] > 1 else 0
    return not (operand.shape[1] % width or lines % width or operand.offset % min(16, width * operand.dtype.itemsize))
