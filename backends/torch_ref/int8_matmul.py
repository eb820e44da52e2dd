"""Product of 8-bit integers by torch._int_mm where that takes the call, else in fp64, which holds the sums too."""

import torch

from kernelmux.registry.backend import Implementation

Maybe = torch.Tensor | None
MOST = 2**30  # elements of a result: cuBLAS refuses 2^31


def int8_matmul(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    b = b if b.is_contiguous() or b.mT.is_contiguous() else b.contiguous()  # cuBLAS refuses lines with a gap
    few = max(1, MOST // max(1, b.shape[1]))
    sums = (
        _product(a, b) if a.shape[0] <= few else torch.cat([_product(a[i : i + few], b) for i in range(0, len(a), few)])
    )
    if scale_a is None and scale_b is None:
        return sums.int()
    for scale in (scale_a, scale_b):
        sums = sums if scale is None else sums * scale
    return sums.bfloat16()


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    fits = a.is_cuda and a.shape[0] > 16 and not (a.shape[1] % 8 or b.shape[1] % 8) and a.numel() and b.numel()
    fits = fits and not any(x.storage_offset() % 16 for x in (a, b))
    return torch._int_mm(a.contiguous(), b) if fits else torch.mm(a.double(), b.double())


VARIANTS = {
    "eager": Implementation(fn=int8_matmul, idea="torch._int_mm, and products with the scales", arithmetic="int32")
}
