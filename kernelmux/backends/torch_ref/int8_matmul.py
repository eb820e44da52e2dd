"""Product of 8-bit integers by torch._int_mm where that takes the call, else in fp64, which holds the sums too."""

import torch

from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Aligned, AtLeast, AtMost, Multiple

Maybe = torch.Tensor | None
# Rows of a part. For 2**18 of them, and b of 64 x 48 by rows, cuBLAS has no kernel: probably since a grid has 65535 blocks
# along its second axis at most. 2**15 rows stay below that whatever the tile.
MOST = 2**15


def plain(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    sums = torch._int_mm(a, _taken(a, b))
    if scale_a is None and scale_b is None:
        return sums
    rows = sums if scale_a is None else sums * scale_a
    return (rows if scale_b is None else rows * scale_b).bfloat16()


def exact(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    b = _taken(a, b)
    sums = _product(a, b) if len(a) <= MOST else torch.cat([_product(rows, b) for rows in _parts(a)])
    if scale_a is None and scale_b is None:
        return sums.int()
    for scale in (scale_a, scale_b):
        sums = sums if scale is None else sums * scale
    return sums.bfloat16()


def _taken(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """b as cuBLAS takes it: by columns, or by rows where rows of a come in 64s; it refuses lines with a gap.

    By rows with N = 32 or 64 it has no kernel for 17 to 4097 rows of a but for 64 and 1024 (torch 2.11, H200).
    """
    if b.mT.is_contiguous() or (b.is_contiguous() and a.shape[0] % 64 == 0):
        return b
    return b.mT.contiguous().mT


def _parts(a: torch.Tensor) -> list[torch.Tensor]:
    return [a[i : i + MOST] for i in range(0, len(a), MOST)]


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    fits = a.is_cuda and a.shape[0] > 16 and not (a.shape[1] % 8 or b.shape[1] % 8) and a.numel() and b.numel()
    fits = fits and not any(x.storage_offset() % 16 for x in (a, b))
    return torch._int_mm(a.contiguous(), b) if fits else torch.mm(a.double(), b.double())


# What cuBLAS takes.
NEEDS = (AtLeast("M", 17), AtMost("M", MOST), AtLeast("K", 8), AtLeast("N", 8), Multiple("K", 8), Multiple("N", 8))

VARIANTS = {
    "plain": Implementation(
        fn=plain,
        idea="torch._int_mm, and products with the scales",
        requires=(*NEEDS, Aligned("a"), Aligned("b")),
        layout={"a": "contiguous"},
        arithmetic="int32",
    ),
    "exact": Implementation(
        fn=exact, idea="torch._int_mm where it takes the call, else a product in fp64", arithmetic="int32"
    ),
}
