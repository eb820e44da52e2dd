"""Products of 8-bit integers in other libraries: cuBLAS through torch, and a pass for the scales."""

import torch

from kernelmux.perf.peers._libraries import columns_first, compiled, through_torch
from kernelmux.registry.conditions import AtLeast, Multiple

Maybe = torch.Tensor | None
TAKEN = (AtLeast("M", 17), Multiple("K", 8), Multiple("N", 8))


def scaled(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    sums = torch._int_mm(a, b)
    if scale_a is None and scale_b is None:
        return sums
    for scale in (scale_a, scale_b):
        sums = sums if scale is None else sums * scale
    return sums.bfloat16()


_compiled = compiled(scaled, *TAKEN, arithmetic="int32")


def with_cublas(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    return scaled(a, columns_first(b), scale_a, scale_b)


def with_torch(a: torch.Tensor, b: torch.Tensor, scale_a: Maybe, scale_b: Maybe) -> torch.Tensor:
    y: torch.Tensor = _compiled.fn(a, columns_first(b), scale_a, scale_b)
    return y


VARIANTS = {
    "cublas": through_torch("cuBLAS, then the scales", with_cublas, *TAKEN, arithmetic="int32"),
    "torch_compile": through_torch("torch.compile", with_torch, *TAKEN, arithmetic="int32"),
}
