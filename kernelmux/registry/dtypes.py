"""Short dtype names (fp32, bf16, ...) and the constants of each floating format."""

from __future__ import annotations

import torch

from kernelmux.registry.errors import ArgumentError

SHORT: dict[torch.dtype, str] = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
}
LONG: dict[str, torch.dtype] = {short: dtype for dtype, short in SHORT.items()}

FLOATS = (torch.float32, torch.float16, torch.bfloat16)

# Unit roundoff: half the distance between 1 and the next number.
UNIT: dict[torch.dtype, float] = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float8_e4m3fn: 2.0**-4,
    torch.float8_e5m2: 2.0**-3,
}


def computes(dtype: torch.dtype) -> bool:
    """Whether torch computes in a dtype: numbers of 8-bit floats it copies and converts, and little else."""
    return not dtype.is_floating_point or dtype.itemsize > 1


def parse(name: str) -> torch.dtype:
    """The dtype of a short ("bf16") or long ("bfloat16") name; ArgumentError names what is known."""
    dtype = LONG.get(name) or getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ArgumentError(f'dtype: expected one of {", ".join(LONG)}, got "{name}"')
    return dtype


def smallest(dtype: torch.dtype, flushed: bool = False) -> float:
    """The smallest positive number of a format: subnormal, or what is left where results may be flushed to zero.

    Kernels flush the subnormal numbers of fp32, in which they compute: those of fp16 are normal there, and are kept.
    """
    info = torch.finfo(dtype)
    least = float(info.smallest_normal * info.eps)
    return max(least, torch.finfo(torch.float32).smallest_normal) if flushed else least
