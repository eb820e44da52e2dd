"""Product of a weight with few vectors by torch.mm."""

import torch

from kernelmux.backends.torch_ref.matmul import coarse, finer
from kernelmux.registry.backend import Implementation


def matvec(weight: torch.Tensor, x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    x, b = x.contiguous(), weight.contiguous().t()
    # On a CPU oneDNN may give NaN for the infinities of a bf16 product, depending on where its operands lie.
    if scale is not None or weight.dtype != x.dtype or not x.is_cuda:
        sums = _product(x.float(), b.float())
        return (sums if scale is None else sums * scale).to(x.dtype)
    return _product(x, b).to(x.dtype)


def _product(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return finer(x, b) if coarse(x, b, "ieee") else torch.mm(x, b)


VARIANTS = {"eager": Implementation(fn=matvec, idea="torch.mm", arithmetic="mma_16")}
