"""Product of a weight with few vectors by torch.nn.functional.linear, or by torch.mm."""

import torch
import torch.nn.functional as F

from kernelmux.backends.torch_ref._conditions import HALVES
from kernelmux.backends.torch_ref.matmul import coarse, finer
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Dtypes
from kernelmux.registry.numerics import Rounding


def plain(weight: torch.Tensor, x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    y = F.linear(x, weight.to(x.dtype))
    return y if scale is None else (y * scale).to(x.dtype)


def exact(weight: torch.Tensor, x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    x, b = x.contiguous(), weight.contiguous().t()
    # On a CPU oneDNN may give NaN for the infinities of a bf16 product, depending on where its operands lie.
    if scale is not None or weight.dtype != x.dtype or not x.is_cuda:
        sums = _product(x.float(), b.float())
        return (sums if scale is None else sums * scale).to(x.dtype)
    return _product(x, b).to(x.dtype)


def _product(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return finer(x, b) if coarse(x, b, "ieee") else torch.mm(x, b)


def _terms(weight: torch.Tensor, x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """The terms of the sums without signs, of which each sum is no larger than their own sum."""
    sums = x.abs() @ weight.to(x).abs().mT
    return 2 * sums if scale is None else 2 * sums * scale.abs()


def _scale(weight: torch.Tensor, x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    return torch.full((), 2.0, dtype=x.dtype) if scale is None else 2 * scale.abs()


SUMS = Rounding("sums before the scale, and the parts of a sum that cuBLAS splits", _terms, _scale)

VARIANTS = {
    "plain": Implementation(
        fn=plain,
        idea="torch.nn.functional.linear with the weight in the dtype of x, times the scale",
        requires=(Dtypes("x", *HALVES),),
        arithmetic="mma_16",
        rounds=(SUMS,),
    ),
    "exact": Implementation(fn=exact, idea="torch.mm, in fp32 where there is a scale", arithmetic="mma_16"),
}
