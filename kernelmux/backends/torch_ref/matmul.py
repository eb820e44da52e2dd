"""Matrix product by torch.matmul.

plain   torch.matmul of 16-bit numbers, by whatever torch's flags allow: cuBLAS may round the parts of a split sum
exact   torch has no precision per call: where its flags allow less than the call asks for, in a wider dtype
"""

from functools import cache
from typing import Any

import torch

from kernelmux.backends.torch_ref._conditions import HALVES, INSIDE_ROWS
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Dtypes
from kernelmux.registry.numerics import Rounding

_precision: Any = torch._C._get_fp32_precision_getter
_fp16_sums: Any = torch._C._get_cublas_allow_fp16_accumulation
TILE = 128  # of cuBLAS: with fewer tiles than multiprocessors it may split K


def plain(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return torch.matmul(a, b)


def exact(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return finer(a, b).to(a.dtype) if coarse(a, b, precision) else torch.matmul(a, b)


def coarse(a: torch.Tensor, b: torch.Tensor, precision: str) -> bool:
    """Whether the sums of torch.matmul may be coarser than the call asks for."""
    if a.dtype == torch.float32:
        return not _allowed(a, precision)
    return not a.is_cuda or _sums_in_16_bits(a, b)  # some processors' products of halves make NaN of infinities


def finer(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b in the next wider dtype."""
    if a.dtype == torch.float32:
        return torch.matmul(a.double(), b.double())
    if not a.is_cuda or (
        torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    ):  # out_dtype needs a GPU, and has no gradient
        return torch.matmul(a.float(), b.float())
    shape = (*a.shape[:-1], b.shape[-1])
    if b.dim() == 2:
        return torch.mm(a.flatten(0, -2), b, out_dtype=torch.float32).view(shape)
    return torch.bmm(a.flatten(0, -3), b.flatten(0, -3), out_dtype=torch.float32).view(shape)


def _allowed(a: torch.Tensor, precision: str) -> bool:
    """Whether torch's flag asks for no less than the call: "tf32" is a permission, "ieee" is none."""
    flag = _precision("cuda" if a.is_cuda else "mkldnn", "matmul")
    return flag in ("none", "ieee") or (flag == "tf32" and precision == "tf32")


def _sums_in_16_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether torch.matmul may add in 16 bits: the parts of a split K do so by torch's default, fp16 if a flag says so."""
    tiles = a.shape[:-2].numel() * -(-a.shape[-2] // TILE) * -(-b.shape[-1] // TILE)
    return tiles < _multiprocessors(a.get_device()) or (a.dtype == torch.float16 and _fp16_sums())


@cache
def _multiprocessors(device: int) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


PARTS = Rounding(
    "the parts of a sum that cuBLAS splits",
    lambda a, b, precision: a.abs() @ b.abs(),
    lambda a, b, precision: torch.ones((), dtype=a.dtype),
)

VARIANTS = {
    "plain": Implementation(
        fn=plain, idea="torch.matmul", requires=(Dtypes("a", *HALVES), INSIDE_ROWS), arithmetic="mma", rounds=(PARTS,)
    ),
    "exact": Implementation(
        fn=exact, idea="torch.matmul, in a wider dtype where its flags allow less than is asked for", arithmetic="mma"
    ),
}
