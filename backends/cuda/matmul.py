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
from math import gcd
from typing import Any

import torch

from kernelmux.backends.cuda._matmul import THREADS, majors, operand
from kernelmux.backends.cuda._matmul_tensor_cores import tensor_cores
from kernelmux.backends.cuda._matmul_wgmma import wgmma
from kernelmux.backends.cuda._runtime import Source, cdiv, ctype
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Aligned, AtMost, Capability, Dtypes

SOURCE = Source(__file__)
SIGNATURE = "a* b* c* M:i32 N:i32 K:i32 lda:i64 ldb:i64"


def _fp32_pipes(entry: str, a: torch.Tensor, b: torch.Tensor, grid: int, block: tuple[int, ...], **defines: int) -> torch.Tensor:
    (M, K), N = a.shape, b.shape[1]
    x, y, c = operand(a, 1), operand(b, 0), a.new_empty(M, N)
    kernel = SOURCE.kernel(entry, SIGNATURE, ELEMENT=ctype(a.dtype), **majors(x, y), **defines)
    kernel(grid, block, a, b, c, M, N, K, x.ld, y.ld)
    return c


def naive(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return _fp32_pipes("matmul_naive", a, b, cdiv(a.shape[0] * b.shape[1], THREADS), (THREADS,))


def tiled(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return _fp32_pipes("matmul_tiled", a, b, cdiv(a.shape[0], 32) * cdiv(b.shape[1], 32), (32, THREADS // 32))


def register_tiled(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    # At most 4 elements, a thread's share of a 128 x 8 tile.
    vectors = {f"{n}_VECTOR": min(4, operand(x, k).bytes // x.element_size()) for n, x, k in (("A", a, 1), ("B", b, 0))}
    grid = cdiv(a.shape[0], 128) * cdiv(b.shape[1], 128)
    return _fp32_pipes("matmul_register_tiled", a, b, grid, (THREADS,), C_VECTOR=gcd(4, b.shape[1]), **vectors)


@dataclass(frozen=True)
class Tf32Allowed:
    """fp32 operands may be rounded to tf32."""

    text: str = 'fp32 only with precision="tf32"'

    def check(self, call: Any) -> str | None:
        """None, or why the operands must stay fp32."""
        fp32 = call.arguments["a"].dtype == torch.float32
        return f"a is fp32, needs {self.text}" if fp32 and call.arguments["precision"] != "tf32" else None


HALVES = Dtypes("a", torch.float16, torch.bfloat16)
FLOATS = Dtypes("a", torch.float32, torch.float16, torch.bfloat16)
INDICES = tuple(AtMost(axis, 2**31 - 512) for axis in "MNK")  # int, rounded up to whole tiles


def _rung(fn: Callable[..., torch.Tensor], idea: str, arithmetic: str, *requires: Any) -> Implementation:
    return Implementation(fn, idea, (*requires, *INDICES), {"a": "matrix", "b": "matrix"}, arithmetic)


VARIANTS = {
    "naive": _rung(naive, "one thread per element", "fp32_sequential", FLOATS),
    "tiled": _rung(tiled, "tiles of both operands in shared memory", "fp32_sequential", FLOATS),
    "register_tiled": _rung(register_tiled, "8x8 elements per thread, the next tile in flight", "fp32_sequential", FLOATS),
    "tensor_cores": _rung(tensor_cores, "mma.sync behind cp.async", "mma", FLOATS, Tf32Allowed(), Capability((8, 0))),
    "wgmma": _rung(
        wgmma, "TMA feeds warpgroup products in a persistent grid", "mma", HALVES, Aligned("a"), Aligned("b"), Capability((9, 0))
    ),
}
