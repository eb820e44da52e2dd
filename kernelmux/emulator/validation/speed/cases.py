"""The launches that are timed: one or two of each kind of kernel, with the right result.

A case takes `run(file, kernel, grid, block, arguments, shared=0)` and returns what it got, what it wanted and how far
the two may lie apart.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy import float32, int32

from kernelmux.emulator.validation.arrays import aligned

KERNELS = Path(__file__).with_name("kernels")

Case = Callable[[Callable[..., None]], tuple[Any, Any, float]]
cases: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Adds a case under the name of its function."""
    cases[function.__name__] = function
    return function


def normal(*shape: int, dtype: Any = float32) -> Any:
    """Normally distributed numbers, the same ones in every run, aligned as a GPU's allocations are."""
    return aligned(np.random.default_rng(sum(shape)).standard_normal(shape, float32).astype(dtype))


def _silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


@case
def add(run: Callable[..., None]) -> tuple[Any, Any, float]:
    x, y, total = normal(10007), normal(10007), normal(10007)
    run("elements", "add", (40,), (256,), (x, y, total, int32(x.size)))
    return total, x + y, 0


@case
def silu(run: Callable[..., None]) -> tuple[Any, Any, float]:
    x, y = normal(37, 271), normal(37, 271)
    run("elements", "silu", (40,), (256,), (x, y, int32(x.size)))
    return y, _silu(x), 2e-6


@case
def silu_pairs(run: Callable[..., None]) -> tuple[Any, Any, float]:
    x, y = normal(4096, dtype=np.float16), normal(4096, dtype=np.float16)
    run("elements", "silu_pairs", (8,), (256,), (x, y, int32(2048)))
    return y.astype(float32), _silu(x.astype(float32)), 4e-3


@case
def softmax(run: Callable[..., None]) -> tuple[Any, Any, float]:
    x, y = 4 * normal(37, 1000), normal(37, 1000)
    run("rows", "softmax_rows", (37,), (256,), (x, y, int32(1000)))
    powers = np.exp(x - x.max(1, keepdims=True))
    return y, powers / powers.sum(1, keepdims=True), 1e-6


@case
def rms_norm(run: Callable[..., None]) -> tuple[Any, Any, float]:
    x, weight, y = normal(37, 1000), normal(1000), normal(37, 1000)
    run("rows", "rms_norm_rows", (37,), (128,), (x, weight, y, int32(250), float32(1e-6)))
    return y, x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6) * weight, 1e-5


@case
def transpose(run: Callable[..., None]) -> tuple[Any, Any, float]:
    x, y = normal(100, 131), normal(131, 100)
    run("tiles", "transpose_tiles", (5, 4), (32, 8), (x, y, int32(100), int32(131)))
    return y, x.T, 0


@case
def matmul(run: Callable[..., None]) -> tuple[Any, Any, float]:
    a, b, c = normal(77, 70), normal(70, 45), normal(77, 45)
    run("tiles", "matmul_tiles", (3, 5), (16, 16), (a, b, c, int32(77), int32(45), int32(70)))
    return c, a @ b, 5e-5


@case
def matmul_wmma(run: Callable[..., None]) -> tuple[Any, Any, float]:
    a, b, c = normal(128, 64, dtype=np.float16), normal(64, 96, dtype=np.float16), normal(128, 96)
    run("gemm_wmma", "gemm", (3, 8), (32, 2), (a, b, c, int32(96), int32(64)))
    return c, a.astype(float32) @ b.astype(float32), 5e-5


@case
def matmul_mma(run: Callable[..., None]) -> tuple[Any, Any, float]:
    """bfloat16: the upper halves of float32 numbers."""
    a, b = (normal(*shape).view(np.uint32) >> 16 for shape in ((64, 96), (96, 64)))
    halves, c = [aligned(x.astype(np.uint16)) for x in (a, b)], normal(64, 64)
    run("gemm_mma", "gemm", (4, 2), (64,), (*halves, c, int32(64), int32(96)))
    return c, (a << 16).view(float32) @ (b << 16).view(float32), 5e-5


@case
def attention(run: Callable[..., None]) -> tuple[Any, Any, float]:
    heads, n = 2, 70
    q, k, v, out = (normal(heads, n, 64, dtype=np.float16) for _ in range(4))
    k, v = aligned(k[:, ::-1]), aligned(v[::-1])
    run("attention", "attention", (3, heads), (128,), (q, k, v, out, int32(n), float32(1 / 8)))
    scores = q.astype(float32) @ k.astype(float32).swapaxes(1, 2) / 8
    powers = np.exp(np.where(np.tri(n, dtype=bool), scores, -np.inf))
    return out.astype(float32), powers / powers.sum(2, keepdims=True) @ v.astype(float32), 3e-3


@case
def sum_last_block(run: Callable[..., None]) -> tuple[Any, Any, float]:
    x, partial, total = normal(100003), normal(24), normal(1)
    run("atomics", "sum_last_block", (24,), (256,), (x, partial, total, int32(x.size)))
    return total, x.sum(dtype=np.float64), 1e-2


@case
def histogram(run: Callable[..., None]) -> tuple[Any, Any, float]:
    x = np.random.default_rng(0).integers(0, 256, 20000, np.uint8)
    counts = np.zeros(256, int32)
    run("atomics", "histogram", (8,), (128,), (x, counts, int32(x.size)), shared=1024)
    return counts, np.bincount(x, minlength=256), 0
