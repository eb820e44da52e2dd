"""c[M, N] = a[M, K] @ b[K, N]: from one thread per element to the asynchronous tensor cores.

naive           one thread per element
tiled           tiles of both operands in shared memory
register_tiled  8x8 elements per thread, the next tile in flight
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

from kernelmux.backends.cuda._matmul import THREADS, Launch, Operand, majors, operand
from kernelmux.backends.cuda._matmul_tensor_cores import tensor_cores
from kernelmux.backends.cuda._matmul_wgmma import wgmma
from kernelmux.backends.cuda._runtime import Source, cdiv, ctype
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Aligned, AtMost, Capability, Dtypes

SOURCE = Source(__file__)
REGISTER_TILED = Source(__file__, "matmul_register_tiled.cu")
SIGNATURE = "a* b* c* M:i32 N:i32 K:i32 lda:i64 ldb:i64"
THREAD_N = 8  # columns of c per thread of register_tiled, 8 or 16


def _product(a: torch.Tensor, b: torch.Tensor, block: tuple[int, ...], prepare: Callable[..., Launch]) -> torch.Tensor:
    (M, K), N = a.shape, b.shape[1]
    launch, c = prepare(a.dtype, M, N, K, operand(a, 1), operand(b, 0)), a.new_empty(M, N)
    launch.kernel(launch.grid, block, a, b, c, *launch.scalars)
    return c


@lru_cache(maxsize=4096)
def _naive(dtype: torch.dtype, M: int, N: int, K: int, a: Operand, b: Operand) -> Launch:
    kernel = SOURCE.kernel("matmul_naive", SIGNATURE, ELEMENT=ctype(dtype), **majors(a.k_major, b.k_major))
    return Launch(kernel, (cdiv(M * N, THREADS),), (M, N, K, a.ld, b.ld))


@lru_cache(maxsize=4096)
def _tiled(dtype: torch.dtype, M: int, N: int, K: int, a: Operand, b: Operand) -> Launch:
    kernel = SOURCE.kernel("matmul_tiled", SIGNATURE, ELEMENT=ctype(dtype), **majors(a.k_major, b.k_major))
    return Launch(kernel, (cdiv(M, 32) * cdiv(N, 32),), (M, N, K, a.ld, b.ld))


@lru_cache(maxsize=4096)
def _register_tiled(dtype: torch.dtype, M: int, N: int, K: int, a: Operand, b: Operand) -> Launch:
    kernel = REGISTER_TILED.kernel(
        "matmul_register_tiled", SIGNATURE, ELEMENT=ctype(dtype), THREAD_N=THREAD_N, C_VECTOR=gcd(4, N),
        A_VECTOR=min(4, a.bytes // dtype.itemsize), B_VECTOR=min(4, b.bytes // dtype.itemsize),
        **majors(a.k_major, b.k_major),
    )  # fmt: skip
    return Launch(kernel, (cdiv(M, 128) * cdiv(N, 128),), (M, N, K, a.ld, b.ld))


def naive(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return _product(a, b, (THREADS,), _naive)


def tiled(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return _product(a, b, (32, THREADS // 32), _tiled)


def register_tiled(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return _product(a, b, (128 * 128 // (8 * THREAD_N),), _register_tiled)


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
class HasWgmma:
    """The GPU is of the one generation that has warpgroup products."""

    text: str = "sm_90 (later generations have no wgmma)"

    def check(self, call: Any) -> str | None:
        """None, or which GPU it is instead."""
        have = call.capability
        return f"the GPU is sm_{have[0]}{have[1]}, needs {self.text}" if have is not None and have[0] > 9 else None


HALVES = Dtypes("a", torch.float16, torch.bfloat16)
FLOATS = Dtypes("a", torch.float32, torch.float16, torch.bfloat16)
INDICES = tuple(AtMost(axis, 2**31 - 512) for axis in "MNK")  # int, rounded up to whole tiles


def _rung(fn: Callable[..., torch.Tensor], idea: str, arithmetic: str, *requires: Any) -> Implementation:
    return Implementation(fn, idea, (*requires, *INDICES), {"a": "matrix", "b": "matrix"}, arithmetic)


ON_HOPPER = (HALVES, Aligned("a"), Aligned("b"), Capability((9, 0)), HasWgmma())

VARIANTS = {
    "naive": _rung(naive, "one thread per element", "fp32_sequential", FLOATS),
    "tiled": _rung(tiled, "tiles of both operands in shared memory", "fp32_sequential", FLOATS),
    "register_tiled": _rung(register_tiled, "8x8 elements per thread", "fp32_sequential", FLOATS),
    "tensor_cores": _rung(tensor_cores, "mma.sync behind cp.async", "mma", FLOATS, Tf32Allowed(), Capability((8, 0))),
    "wgmma": _rung(wgmma, "TMA feeds warpgroup products in a persistent grid", "mma", *ON_HOPPER),
}
