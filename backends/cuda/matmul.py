"""c[M, N] = a[M, K] @ b[K, N]: from one thread per element to the asynchronous tensor cores.

naive           one thread per element
tiled           tiles of both operands in shared memory
register_tiled  8x16 elements per thread, the next tile in flight
tensor_cores    mma.sync behind cp.async, swizzled shared memory; fp32 as tf32
wgmma           TMA feeds warpgroup products in a persistent grid

Row-major operands and transposed views are read where they lie. Short of tiles, the last two split K.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Any

import torch

from kernelmux.backends.cuda._layout import Layout, layout
from kernelmux.backends.cuda._matmul import THREADS, Plan, majors, operand, simple_plan
from kernelmux.backends.cuda._matmul_tensor_cores import tensor_cores
from kernelmux.backends.cuda._matmul_wgmma import wgmma
from kernelmux.backends.cuda._runtime import Source, cdiv, ctype
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Aligned, AtLeast, AtMost, Capability, Dtypes

SOURCE = Source(__file__)
REGISTER_TILED = Source(__file__, "matmul_register_tiled.cu")
SIGNATURE = "a* b* c* M:i32 N:i32 K:i32 lda:i64 ldb:i64"


def naive(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return _naive(layout(a), layout(b)).run(a, b)


def tiled(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return _tiled(layout(a), layout(b)).run(a, b)


def register_tiled(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return _register_tiled(layout(a), layout(b)).run(a, b)


@lru_cache(maxsize=4096)
def _naive(a: Layout, b: Layout) -> Plan:
    kernel = SOURCE.kernel("matmul_naive", SIGNATURE, ELEMENT=ctype(a.dtype), **majors(operand(a, 1), operand(b, 0)))
    return simple_plan(kernel, cdiv(a.shape[0] * b.shape[1], THREADS), THREADS, a, b)


@lru_cache(maxsize=4096)
def _tiled(a: Layout, b: Layout) -> Plan:
    kernel = SOURCE.kernel("matmul_tiled", SIGNATURE, ELEMENT=ctype(a.dtype), **majors(operand(a, 1), operand(b, 0)))
    return simple_plan(kernel, cdiv(a.shape[0], 32) * cdiv(b.shape[1], 32), (32, THREADS // 32), a, b)


@lru_cache(maxsize=4096)
def _register_tiled(a: Layout, b: Layout) -> Plan:
    x, y, size = operand(a, 1), operand(b, 0), a.dtype.itemsize
    kernel = REGISTER_TILED.kernel(
        "matmul_register_tiled", SIGNATURE, ELEMENT=ctype(a.dtype), C_VECTOR=gcd(4, b.shape[1]),
        A_VECTOR=min(4, x.bytes // size), B_VECTOR=min(4, y.bytes // size), **majors(x, y),
    )  # fmt: skip
    grid = cdiv(a.shape[0], 128) * cdiv(b.shape[1], 128)
    return simple_plan(kernel, grid, 128 * 128 // (8 * 16), a, b)


@dataclass(frozen=True)
class Tf32Allowed:
    """fp32 operands may be rounded to tf32."""

    text: str = 'fp32 only with precision="tf32"'

    def check(self, call: Any) -> str | None:
        """None, or why the operands must stay fp32."""
        fp32 = call.arguments["a"].dtype == torch.float32
        refused = fp32 and call.arguments["precision"] != "tf32"
        return 'a is fp32, needs precision="tf32" (or a 16-bit dtype)' if refused else None


@dataclass(frozen=True)
class Tf32Layout:
    """K is the contiguous index of fp32 operands, or the product is large enough to repay a transposed copy."""

    text: str = "fp32 with K strided only if K is a multiple of 4 and M, N >= 512"

    def check(self, call: Any) -> str | None:
        """None, or which operand is fp32 with K strided in a product too small to copy it."""
        a, b = call.arguments["a"], call.arguments["b"]
        (M, K), N = a.shape, b.shape[1]
        strided = [n for n, x, axis in (("a", a, 1), ("b", b, 0)) if not operand(layout(x), axis).k_major]
        if a.dtype != torch.float32 or not strided or (K % 4 == 0 and min(M, N) >= 512):
            return None
        return f"{strided[0]} is fp32 with K strided, needs K contiguous, or K a multiple of 4 and M, N >= 512"


FLOATS = Dtypes("a", torch.float32, torch.float16, torch.bfloat16)
INDICES = tuple(AtMost(axis, 2**31 - 512) for axis in "MNK")  # int, rounded up to whole tiles


def _rung(fn: Callable[..., torch.Tensor], idea: str, arithmetic: str, *requires: Any) -> Implementation:
    return Implementation(fn, idea, (FLOATS, *requires, *INDICES), {"a": "matrix", "b": "matrix"}, arithmetic)


# Up to 16 rows, the 16-row tiles of tensor_cores read b faster: 3.7 TB/s instead of 3.2 at K = 4096, N = 14336.
ON_HOPPER = (
    Tf32Allowed(), Tf32Layout(), Aligned("a"), Aligned("b"), AtLeast("M", 17), Capability((9, 0), below=(10, 0)),
)  # fmt: skip

VARIANTS = {
    "naive": _rung(naive, "one thread per element", "fp32_sequential"),
    "tiled": _rung(tiled, "tiles of both operands in shared memory", "fp32_sequential"),
    "register_tiled": _rung(register_tiled, "8x16 elements per thread", "fp32_sequential"),
    "tensor_cores": _rung(tensor_cores, "mma.sync behind cp.async", "mma", Tf32Allowed(), Capability((8, 0))),
    "wgmma": _rung(wgmma, "TMA feeds warpgroup products in a persistent grid", "mma", *ON_HOPPER),
}
