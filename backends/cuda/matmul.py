"""c[M, N] = a[M, K] @ b[K, N]: from one thread per element to the tensor cores.

naive           one thread per element
tiled           tiles of both operands in shared memory
register_tiled  8x8 elements per thread, the next tile in flight
tensor_cores    mma.sync behind cp.async, swizzled shared memory; short of tiles it splits K

Row-major operands and transposed views are read where they lie; any alignment, with copies as wide as it allows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple

import torch

from kernelmux.backends.cuda._runtime import Kernel, Source, cdiv, ctype, multiprocessors
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost, Capability, Dtypes

FP32_PIPES = Source(__file__)
TENSOR_CORES = Source(__file__, "matmul_tensor_cores.cu")
SPLITS = Source(__file__, "matmul_splits.cu")
THREADS = 256


class Operand(NamedTuple):
    """Where an operand's elements are: which index is contiguous, the stride of the other, the widest aligned access."""

    k_major: bool
    ld: int
    bytes: int


def operand(x: torch.Tensor, k_axis: int) -> Operand:
    """How to read `x`, one of whose strides is 1; `k_axis` is the axis that is summed over."""
    inner = 0 if x.stride(0) == 1 and (x.stride(1) != 1 or x.shape[1] == 1) else 1
    extent, lines = x.shape[inner], x.shape[1 - inner]
    ld = x.stride(1 - inner) if lines > 1 else cdiv(extent, 16) * 16
    return Operand(inner == k_axis, ld, gcd(16, x.data_ptr(), ld * x.element_size(), extent * x.element_size()))


def _majors(a: Operand, b: Operand) -> dict[str, int]:
    return {"A_K_MAJOR": int(a.k_major), "B_K_MAJOR": int(b.k_major)}


# --- the FP32 pipes -----------------------------------------------------------------------------------------


def _fp32_pipes(entry: str, a: torch.Tensor, b: torch.Tensor, grid: int, block: tuple[int, int], **defines: int) -> torch.Tensor:
    (M, K), N = a.shape, b.shape[1]
    x, y, c = operand(a, 1), operand(b, 0), a.new_empty(M, N)
    defines |= _majors(x, y)
    kernel = FP32_PIPES.kernel(entry, "a* b* c* M:i32 N:i32 K:i32 lda:i64 ldb:i64", ELEMENT=ctype(a.dtype), **defines)
    kernel(grid, block, a, b, c, M, N, K, x.ld, y.ld)
    return c


def naive(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return _fp32_pipes("matmul_naive", a, b, cdiv(a.shape[0] * b.shape[1], THREADS), (THREADS, 1))


def tiled(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return _fp32_pipes("matmul_tiled", a, b, cdiv(a.shape[0], 32) * cdiv(b.shape[1], 32), (32, THREADS // 32))


def register_tiled(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    # Four elements at most: a thread's share of a 128 x 8 tile.
    vectors = {f"{n}_VECTOR": min(4, operand(x, k).bytes // x.element_size()) for n, x, k in (("A", a, 1), ("B", b, 0))}
    grid = cdiv(a.shape[0], 128) * cdiv(b.shape[1], 128)
    return _fp32_pipes("matmul_register_tiled", a, b, grid, (THREADS, 1), C_VECTOR=gcd(4, b.shape[1]), **vectors)


# --- the tensor cores ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tiling:
    """What a block computes: c in tiles of m x n, `k` of K per stage; in bytes of K to serve every dtype."""

    m: int
    n: int
    k_bytes: int
    warps_m: int
    warps_n: int
    stages: int

    @property
    def stage_bytes(self) -> int:
        return (self.m + self.n) * self.k_bytes

    def tiles(self, M: int, N: int) -> int:
        return cdiv(M, self.m) * cdiv(N, self.n)


# Widest first: a wide tile reads each operand less often, a narrow one leaves no multiprocessor idle.
TILINGS = (Tiling(128, 256, 128, 2, 4, 3), Tiling(128, 128, 64, 2, 4, 4), Tiling(64, 64, 128, 2, 2, 4))
SKINNY = Tiling(16, 128, 128, 1, 4, 4)  # M of a decode step: c is small, the time goes into reading b
MINIMUM_SPLIT = 512  # of K; below it the partial sums cost more than the idle multiprocessors


def _tiling(M: int, N: int, multiprocessors: int) -> Tiling:
    if M <= 16:
        return SKINNY
    return next((t for t in TILINGS if t.tiles(M, N) >= multiprocessors), TILINGS[-1])


def _splits(tiles: int, K: int, multiprocessors: int) -> int:
    """In how many pieces K is cut so that there is a tile for every multiprocessor."""
    return max(1, min(multiprocessors // max(tiles, 1), K // MINIMUM_SPLIT))


def sum_splits(parts: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """c = the sum of `parts` over their first axis, in order, rounded once."""
    kernel = SPLITS.kernel("matmul_sum_splits", "parts* c* size:i64 splits:i32", ELEMENT=ctype(c.dtype))
    kernel(cdiv(c.numel(), THREADS), THREADS, parts, c, c.numel(), parts.shape[0])
    return c


def _tensor_core_kernel(dtype: torch.dtype, out: torch.dtype, t: Tiling, N: int, a: Operand, b: Operand) -> Kernel:
    return TENSOR_CORES.kernel(
        "matmul_tensor_cores", "a* b* c* M:i32 N:i32 K:i32 lda:i64 ldb:i64 k_split:i32",
        ELEMENT=ctype(dtype), OUTPUT=ctype(out), C_VECTOR=gcd(16 // out.itemsize, N), A_COPY=a.bytes, B_COPY=b.bytes,
        BLOCK_M=t.m, BLOCK_N=t.n, BLOCK_K=t.k_bytes // dtype.itemsize, WARPS_M=t.warps_m, WARPS_N=t.warps_n,
        STAGES=t.stages, **_majors(a, b),
    )  # fmt: skip


def tensor_cores(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    (M, K), N = a.shape, b.shape[1]
    if K == 0:
        return a.new_zeros(M, N)
    t = _tiling(M, N, multiprocessors(a))
    splits = _splits(t.tiles(M, N), K, multiprocessors(a))
    return tensor_cores_as(a, b, t, splits)


def tensor_cores_as(a: torch.Tensor, b: torch.Tensor, t: Tiling, splits: int) -> torch.Tensor:
    """The tensor-core rung with a given tiling, K cut in at most `splits` pieces."""
    (M, K), N = a.shape, b.shape[1]
    c, block_k = a.new_empty(M, N), t.k_bytes // a.element_size()
    k_split = cdiv(cdiv(K, splits), block_k) * block_k
    parts = a.new_empty(cdiv(K, k_split), M, N, dtype=torch.float32) if k_split < K else c
    x, y = operand(a, 1), operand(b, 0)
    kernel = _tensor_core_kernel(a.dtype, parts.dtype, t, N, x, y)
    strips = t.warps_m * t.warps_n * 16 * (t.n // t.warps_n + 8) * parts.element_size()
    grid = (t.tiles(M, N), cdiv(K, k_split))
    block = t.warps_m * t.warps_n * 32
    kernel(grid, block, a, b, parts, M, N, K, x.ld, y.ld, k_split, shared=max(t.stages * t.stage_bytes, strips))
    return c if parts is c else sum_splits(parts, c)


@dataclass(frozen=True)
class Tf32Allowed:
    """fp32 operands may be rounded to tf32."""

    text = 'fp32 only with precision="tf32"'

    def check(self, call: Any) -> str | None:
        fp32 = call.arguments["a"].dtype == torch.float32
        return f"a is fp32, needs {self.text}" if fp32 and call.arguments["precision"] != "tf32" else None


INDEX_LIMITS = tuple(AtMost(axis, 2**31 - 512) for axis in "MNK")  # 32-bit indices, rounded up to whole tiles


def _rung(fn: Callable[..., torch.Tensor], idea: str, arithmetic: str, *requires: Any) -> Implementation:
    dtypes = Dtypes("a", torch.float32, torch.float16, torch.bfloat16)
    return Implementation(fn, idea, (dtypes, *INDEX_LIMITS, *requires), {"a": "matrix", "b": "matrix"}, arithmetic)


VARIANTS = {
    "naive": _rung(naive, "one thread per element", "fp32_sequential"),
    "tiled": _rung(tiled, "tiles of both operands in shared memory", "fp32_sequential"),
    "register_tiled": _rung(register_tiled, "8x8 elements per thread, the next tile in flight", "fp32_sequential"),
    "tensor_cores": _rung(tensor_cores, "mma.sync behind cp.async", "mma", Tf32Allowed(), Capability((8, 0))),
}
