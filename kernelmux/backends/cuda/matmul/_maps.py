"""How TMA reads the factors of a product: the tensor maps that the kernels on wgmma share."""

import torch

from kernelmux.backends.cuda._launch.runtime import Tiles
from kernelmux.backends.cuda.matmul._choice import MatmulProblem, Operand

NUMBERS = "M:i32 N:i32 K:i32 k_split:i32 works:i32"
SWIZZLED = 128  # bytes along the contiguous index, the widest swizzle
MOST_LINES = 256  # of a box
Numbers = tuple[int, ...]


def tiles(p: MatmulProblem, x: Operand, length: int, lines: int, width: int = 0) -> Tiles:
    """[M or N, K] as lines along the contiguous index, `lines` of them in a box, or in several of equal size where a box
    has no room for so many. In a batch the axes of that come before; an axis along which there is but one matrix has
    length 1."""
    per_line, tf32 = SWIZZLED // p.dtype.itemsize, p.dtype == torch.float32
    shape: Numbers = (length, p.K) if x.k_major else (p.K, length)
    strides: Numbers = (x.ld, 1)
    box: Numbers = (lines // -(-lines // MOST_LINES), width or per_line)
    if p.batch:
        sizes = (p.batch.outer, p.batch.inner)
        shape = (*(n if apart else 1 for n, apart in zip(sizes, x.apart, strict=True)), *shape)
        strides, box = (*x.apart, *strides), (1, 1, *box)
    return Tiles(shape, strides, box, swizzle=SWIZZLED, tf32=tf32)
