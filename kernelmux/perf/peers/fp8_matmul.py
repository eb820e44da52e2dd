"""Products of 8-bit floats in other libraries: cuBLAS and CUTLASS through torch._scaled_mm, and DeepGEMM.

Both want scales of blocks in an order of their own, which a caller that quantizes for them would write at once: they are
turned once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelmux.perf.peers._libraries import columns_first, function, library, once, through_torch
from kernelmux.registry import dtypes
from kernelmux.registry.conditions import Dtypes, Multiple, OneOf
from kernelmux.registry.spec import Call

_deep_gemm = function("deep_gemm.fp8_gemm_nt")


def scales_of(call: Call) -> str:
    """What has a scale of its own: "all", "lines", "blocks", or "others" where the factors differ."""
    shapes = [tuple(call.arguments[name].shape) for name in ("scale_a", "scale_b")]
    m, n, k = (call.axes[axis] for axis in "MNK")
    kinds = {"all": [(), ()], "lines": [(m, 1), (1, n)], "blocks": [(m, -(-k // 128)), (-(-k // 128), -(-n // 128))]}
    return next((kind for kind, wanted in kinds.items() if shapes == wanted), "others")


@dataclass(frozen=True)
class Scales:
    """A scale for all, or one for each line of both factors with a result in bf16, or scales of blocks, as `torch` takes
    them: on Hopper, and of 512 of K, as releases of torch differ in the stride that they ask for otherwise."""

    text: str = "one scale, scales of lines and a result in bf16, or scales of blocks and K a multiple of 512"

    def check(self, call: Call) -> str | None:
        kind, out = scales_of(call), call.arguments["out_dtype"]
        whole = kind == "blocks" and call.axes["K"] % 512 == 0 and call.arguments["accumulation"] == "full"
        if kind == "all" or (kind == "lines" and out == "bf16") or whole:
            return None
        shapes = [tuple(call.arguments[name].shape) for name in ("scale_a", "scale_b")]
        return f"scales {shapes} and a result in {out}, needs {self.text}"


@dataclass(frozen=True)
class BlockScales:
    """Both factors have scales of blocks."""

    text: str = "scales of blocks"

    def check(self, call: Call) -> str | None:
        kind = scales_of(call)
        return None if kind == "blocks" else f"scales of {kind}, needs {self.text}"


@dataclass(frozen=True)
class NotBoth:
    """cuBLAS has no product of two factors in e5m2."""

    text: str = "no two factors in e5m2"

    def check(self, call: Call) -> str | None:
        both = {call.arguments[name].dtype for name in "ab"} == {torch.float8_e5m2}
        return f"a and b in e5m2, needs {self.text}" if both else None


@once
def rows_inside(scale: torch.Tensor) -> torch.Tensor:
    """scale [M G] with M contiguous, and each of its columns from a multiple of 16 bytes on where M is one of 4."""
    return scale.mT.contiguous().mT


@once
def rows_inside_padded(scale: torch.Tensor) -> torch.Tensor:
    """The same, its columns from multiples of 16 bytes on whatever M is: what DeepGEMM would else make in each call."""
    rows, columns = scale.shape
    return scale.new_empty(columns, -(-rows // 4) * 4).mT[:rows].copy_(scale)


def with_torch(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, out_dtype: str, accumulation: str
) -> torch.Tensor:
    out, fast = dtypes.parse(out_dtype), accumulation == "fast"
    if scale_a.dim() and scale_a.shape[1] > 1:
        scale_a, scale_b = rows_inside(scale_a), rows_inside(scale_b)
    return torch._scaled_mm(a, columns_first(b), scale_a, scale_b, out_dtype=out, use_fast_accum=fast)


def with_deep_gemm(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, out_dtype: str, accumulation: str
) -> torch.Tensor:
    c = a.new_empty(a.shape[0], b.shape[1], dtype=torch.bfloat16)
    _deep_gemm((a, rows_inside_padded(scale_a)), (columns_first(b).mT, rows_inside(scale_b).mT), c)
    return c


E4M3 = (Dtypes("a", torch.float8_e4m3fn), Dtypes("b", torch.float8_e4m3fn))
TAKEN = (Multiple("K", 16), Multiple("N", 16), Scales(), NotBoth())
VARIANTS = {
    "scaled_mm": through_torch("torch._scaled_mm", with_torch, *TAKEN, arithmetic="mma"),
    "deep_gemm": library(
        "deep_gemm",
        with_deep_gemm,
        *E4M3,
        Multiple("K", 128),
        Multiple("N", 8),
        BlockScales(),
        OneOf("out_dtype", "bf16"),
        OneOf("accumulation", "full"),
        arithmetic="mma",
    ),
}
