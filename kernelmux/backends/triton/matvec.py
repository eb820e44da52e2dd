"""matvec: y[b, n] = scale[n] * sum over k of weight[n, k] * x[b, k], for a few vectors: the time is that of the weight.

lanes  each thread multiplies for itself and keeps a sum for each element of its tile and each vector: any dtype
dot    tensor cores, of which the vectors fill 16 columns: more of them cost nothing
few_rows  as matmul multiplies few rows: the copy engine reads the weight, programs share K
"""

from __future__ import annotations

from math import gcd

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch.dependent import follow_previous, following
from kernelmux.backends.triton._launch.launch import Config, Launch, cdiv, plan, processors
from kernelmux.backends.triton._launch.strides import Ints
from kernelmux.backends.triton._rows.rows import clamp, next_power
from kernelmux.backends.triton.matmul import matmul_few_rows
from kernelmux.backends.triton.matmul._epilogue import PLAIN
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtDefault, AtLeast, Capability, Dtypes, Either, OddLines

# Bytes of the weight in a program of a kernel that starts early, which costs each program something. H200, in a step of
# decoding, us without and so: 28672 rows of 8 KiB 54.3 and 54.2; 32000 of 4 KiB 30.0 and 39.5.
EARLY = 8192
COLUMNS = tl.constexpr(16)  # of a product of tensor cores, at least


@triton.jit
def _store(y_ptr, sums, scale_ptr, n, b, N, inside, SCALED: tl.constexpr):
    """sums [BLOCK_N, ...] of rows n and vectors b, both of that many axes."""
    if SCALED:
        sums *= tl.load(scale_ptr + n, mask=n < N, other=0.0)
    tl.store(y_ptr + (b.to(tl.int64) * N + n), sums.to(y_ptr.dtype.element_ty), mask=inside)


# Four bytes, with 128 added to each, as the last digits of 2^23 + byte: a permutation and a subtraction, where a conversion
# of an integer has an eighth of their rate.
_WIDEN = tl.constexpr("""{
.reg .b32 word, digits;
xor.b32 word, $4, 0x80808080;
prmt.b32 digits, word, 0x4b000000, 0x7440;
sub.rn.f32 $0, digits, 0f4B000080;
prmt.b32 digits, word, 0x4b000000, 0x7441;
sub.rn.f32 $1, digits, 0f4B000080;
prmt.b32 digits, word, 0x4b000000, 0x7442;
sub.rn.f32 $2, digits, 0f4B000080;
prmt.b32 digits, word, 0x4b000000, 0x7443;
sub.rn.f32 $3, digits, 0f4B000080;
}""")


@triton.jit
def _numbers(x):
    """x in fp32."""
    if x.dtype == tl.int8:
        return tl.inline_asm_elementwise(_WIDEN, "=f,=f,=f,=f,r", [x], tl.float32, is_pure=True, pack=4)
    return x.to(tl.float32)


@triton.jit
def matvec_lanes_kernel(
    y_ptr, weight_ptr, x_ptr, scale_ptr, N, K, weight_row, x_row,
    SCALED: tl.constexpr, EVEN_K: tl.constexpr, BATCH: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    UNIT: tl.constexpr, FOLLOWS: tl.constexpr = False,
):  # fmt: skip
    follow_previous(FOLLOWS)
    K, weight_row, x_row = K * UNIT, weight_row * UNIT, x_row * UNIT
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    rows = weight_ptr + tl.minimum(n, N - 1).to(tl.int64) * weight_row
    state = ()
    for _ in tl.static_range(BATCH):
        state += (tl.zeros([BLOCK_N, BLOCK_K], tl.float32),)  # type: ignore[assignment]
    for begin in range(0, K, BLOCK_K):
        k = begin + tl.arange(0, BLOCK_K)[None, :]
        mask = (k < K) | EVEN_K
        w = _numbers(tl.load(rows + k, mask=mask, other=0, eviction_policy="evict_first"))
        grown = ()
        for b in tl.static_range(BATCH):
            v = tl.load(x_ptr + (tl.full([1, 1], b, tl.int64) * x_row + k), mask=mask, other=0.0).to(tl.float32)
            grown += (tl.fma(w, tl.broadcast_to(v, [BLOCK_N, BLOCK_K]), state[b]),)  # type: ignore[assignment]
        state = grown
    for b in tl.static_range(BATCH):
        sums = tl.sum(state[b], 1, keep_dims=True)
        _store(y_ptr, sums, scale_ptr, n, tl.full([1, 1], b, tl.int32), N, n < N, SCALED)


@triton.jit
def matvec_dot_kernel(
    y_ptr, weight_ptr, x_ptr, scale_ptr, N, K, weight_row, x_row,
    SCALED: tl.constexpr, EVEN_K: tl.constexpr, BATCH: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    UNIT: tl.constexpr, FOLLOWS: tl.constexpr = False,
):  # fmt: skip
    follow_previous(FOLLOWS)
    K, weight_row, x_row = K * UNIT, weight_row * UNIT, x_row * UNIT
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    b = tl.arange(0, COLUMNS)[None, :]
    offs_k = tl.arange(0, BLOCK_K)
    weights = weight_ptr + (tl.minimum(n, N - 1).to(tl.int64) * weight_row + offs_k[None, :])
    vectors = x_ptr + (b.to(tl.int64) * x_row + offs_k[:, None])
    acc = tl.zeros([BLOCK_N, COLUMNS], tl.float32)
    for k in range(0, K, BLOCK_K):
        mask = (offs_k < K - k) | EVEN_K
        w = tl.load(weights + k, mask=mask[None, :], other=0, eviction_policy="evict_first")
        v = tl.load(vectors + k, mask=mask[:, None] & (b < BATCH), other=0.0)  # [BLOCK_K, COLUMNS]
        acc = tl.dot(w.to(v.dtype), v, acc)
    _store(y_ptr, acc, scale_ptr, n, b, N, (n < N) & (b < BATCH), SCALED)


def lanes_rule(n: int, k: int, size: int, device: int, vectors: int = 1) -> Config:
    """At most 1024 elements of a row at a time, of several short rows; the same for any number of vectors, as the bits are.

    H200, int8, 14336 x 4096: 24.4 us; 2048 elements at a time 27.1.
    """
    block_k = min(next_power(k), 1024, 2048 // size)
    rows = clamp(512 // block_k, 1, 4)
    return {
        "BLOCK_N": rows,
        "BLOCK_K": block_k,
        "num_warps": clamp(rows * block_k // (512 if size == 1 else 256), 1, 4),
    }


def dot_rule(n: int, k: int, size: int, device: int, vectors: int = 16) -> Config:
    """H200, 16 vectors, bf16: 14336 x 4096 in 39 us with 64 rows per program, else 43; 4096 x 4096 19 us and 16. Four
    vectors: 16192 x 4160 in 45.0 us with one warp per program, 48.6 with two; 4096 x 11008 34.1 us with two."""
    many = n >= 64 * processors(device)
    rows, line, stages, warps = (64, 256, 4, 4) if many else (16, 1024, 4, 2)
    if many and vectors < 5:
        rows, line, warps = 16, 512, 1
    if size == 1:
        rows, line, stages, warps = 32, 256, 6, 4
    return {
        "BLOCK_N": rows,
        "BLOCK_K": clamp(next_power(k), 16, line // size),
        "num_warps": warps,
        "num_stages": stages,
    }


def matvec_lanes(weight: torch.Tensor, x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    return _run("lanes", weight, x, scale)


def matvec_dot(weight: torch.Tensor, x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    return _run("dot", weight, x, scale)


def matvec_few_rows(weight: torch.Tensor, x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Two vectors not where lines of the weight begin at odd multiples of 8 bytes.

    H200, bf16, us by lanes and so: one, of odd lines, 3744 x 18781 89.7 and 81.5, 50257 x 1023 69.3 and 42.4, 2048 x 5001
    17.8 and 15.1, but 4096 x 4100 14.9 and 23.0; two, 50257 x 1026 80.5 and 42.8, but 4096 x 11004 36.3 and 47.1.
    """
    if len(x) == 2 and weight.stride(0) * weight.element_size() % 16 == 8:
        return matvec_lanes(weight, x, None)
    return matmul_few_rows(x, weight.t(), "ieee", PLAIN)


def _run(way: str, weight: torch.Tensor, x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    y = x.new_empty(len(x), len(weight))
    if y.numel():
        size, device = weight.dtype.itemsize, weight.get_device()
        launch = _plan(way, weight.shape, len(x), weight.stride(0), x.stride(0), size, scale is not None, device)
        launch(y, weight, x, y if scale is None else scale)
    return y


@plan
def _plan(
    way: str, shape: Ints, batch: int, weight_row: int, x_row: int, size: int, scaled: bool, device: int
) -> Launch:
    (N, K), (kernel, rule) = shape, WAYS[way]
    config = rule(N, K, size, device, batch)
    early = following(device) if config["BLOCK_N"] * K * size >= EARLY else {}
    # Of a number Triton knows only whether it is a multiple of 16: of others it is told of which smaller one. H200, us with
    # that and without: 16963 x 5784 56.0 and 114.6, 2800 x 5336 bytes, six vectors, 17.9 and 47.7.
    unit = 1 if all(n % 16 == 0 for n in (K, weight_row, x_row)) else gcd(8, K, weight_row, x_row)
    meta = {"SCALED": scaled, "EVEN_K": K % config["BLOCK_K"] == 0, "BATCH": batch, "UNIT": unit, **config, **early}
    return Launch(kernel, (cdiv(N, config["BLOCK_N"]),), N, K // unit, weight_row // unit, x_row // unit, **meta)


WAYS = {"lanes": (matvec_lanes_kernel, lanes_rule), "dot": (matvec_dot_kernel, dot_rule)}
_LAYOUT = {"weight": "last", "x": "last", "scale": "contiguous"}
# H200, bf16, by lanes and on tensor cores: 14336 x 4096, two vectors, takes 38.8 us and 43.3; 4096 x 4096, three, 18.5 and
# 16.7; 4096 x 11008, four, 52.0 and 34.1; 14336 x 4096 bytes, four, 66.4 and 29.7.
_ON_TENSOR_CORES = (
    Capability((8, 0)), Dtypes("weight", torch.float16, torch.bfloat16, torch.int8), AtLeast("B", 3),
    Dtypes("x", torch.float16, torch.bfloat16),
)  # fmt: skip
_AS_PRODUCT = (
    Capability((9, 0), below=(10, 0)), Dtypes("weight", torch.float16, torch.bfloat16), AtDefault("scale"),
    Either(AtLeast("B", 2), OddLines("weight")), AtLeast("N", 16), AtLeast("K", 16),
)  # fmt: skip
VARIANTS = {
    "lanes": Implementation(matvec_lanes, "each thread multiplies for itself", layout=_LAYOUT),
    "dot": Implementation(matvec_dot, "tensor cores", _ON_TENSOR_CORES, _LAYOUT, "mma_16"),
    "few_rows": Implementation(
        matvec_few_rows, "as few rows of a product, programs share K", _AS_PRODUCT, _LAYOUT, "mma_16"
    ),
}
