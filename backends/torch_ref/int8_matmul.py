"""Product of 8-bit integers by torch._int_mm where that takes the call, else in fp64, which holds the sums too."""

import torch

from kernelmux.registry.backend import Implementation

Maybe = torch.Tensor | None


def int8_matmul(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    fits = a.is_cuda and a.shape[0] > 16 and not (a.shape[1] % 8 or b.shape[1] % 8) and a.numel() and b.numel()
    fits = fits and not any(x.storage_offset() % 16 for x in (a, b))
    b = b if b.is_contiguous() or b.mT.is_contiguous() else b.contiguous()  # cuBLAS refuses lines with a gap
    sums = torch._int_mm(a.contiguous(), b) if fits else torch.mm(a.double(), b.double())
    if scale_a is None and scale_b is None:
        return sums.int()
    for scale in (scale_a, scale_b):
        sums = sums if scale is None else sums * scale
    return sums.bfloat16()


VARIANTS = {
    "eager": Implementation(fn=int8_matmul, idea="torch._int_mm, and products with the scales", arithmetic="int32")
}
