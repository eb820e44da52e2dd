"""Product of a weight with few vectors by torch.nn.functional.linear."""

import torch
import torch.nn.functional as F

from kernelmux.backends.torch_ref.matmul import coarse, finer
from kernelmux.registry.backend import Implementation


def matvec(weight: torch.Tensor, x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    # On a CPU oneDNN may give NaN for the infinities of a bf16 product, depending on where its operands lie.
    if scale is not None or weight.dtype != x.dtype or not x.is_cuda:
        sums = F.linear(x.float(), weight.float())
        return (sums if scale is None else sums * scale).to(x.dtype)
    b = weight.t()
    return finer(x, b).to(x.dtype) if coarse(x, b, "ieee") else F.linear(x, weight)


VARIANTS = {"eager": Implementation(fn=matvec, idea="torch.nn.functional.linear", arithmetic="mma_16")}
