"""Products of 8-bit floats in other libraries: cuBLAS and CUTLASS through torch._scaled_mm."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelmux.perf.peers._libraries import columns_first, through_torch
from kernelmux.registry import dtypes
from kernelmux.registry.conditions import Multiple
from kernelmux.registry.spec import Call


@dataclass(frozen=True)
class WholeScales:
    """A scale for all, or one for each line of both factors with a result in bf16."""

    text: str = "one scale, or scales of lines and a result in bf16"

    def check(self, call: Call) -> str | None:
        shapes = [tuple(call.arguments[name].shape) for name in ("scale_a", "scale_b")]
        m, n, out = call.axes["M"], call.axes["N"], call.arguments["out_dtype"]
        met = shapes == [(), ()] or (shapes == [(m, 1), (1, n)] and out == "bf16")
        return None if met else f"scales {shapes} and a result in {out}, needs {self.text}"


@dataclass(frozen=True)
class NotBoth:
    """cuBLAS has no product of two factors in e5m2."""

    text: str = "no two factors in e5m2"

    def check(self, call: Call) -> str | None:
        both = {call.arguments[name].dtype for name in "ab"} == {torch.float8_e5m2}
        return f"a and b in e5m2, needs {self.text}" if both else None


def with_torch(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, out_dtype: str, accumulation: str
) -> torch.Tensor:
    out, fast = dtypes.parse(out_dtype), accumulation == "fast"
    return torch._scaled_mm(a, columns_first(b), scale_a, scale_b, out_dtype=out, use_fast_accum=fast)


TAKEN = (Multiple("K", 16), Multiple("N", 16), WholeScales(), NotBoth())
VARIANTS = {"scaled_mm": through_torch("torch._scaled_mm", with_torch, *TAKEN, arithmetic="mma")}
