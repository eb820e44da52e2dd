"""newop: one program per tile of c, accumulated in fp32; tensor cores multiply 16-bit numbers."""

from typing import Any

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch import Ints, Launch, cdiv, plan
from kernelmux.registry.backend import Implementation

TILE: dict[str, Any] = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4}


@triton.jit
def product_kernel(
    c_ptr, a_ptr, b_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    tiles_n = tl.cdiv(N, BLOCK_N)
    rows = (tl.program_id(0) // tiles_n).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    columns = (tl.program_id(0) % tiles_n).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)  # [BLOCK_N]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K).to(tl.int64)
        a_mask = (rows < M)[:, None] & (k < K)[None, :]
        b_mask = (k < K)[:, None] & (columns < N)[None, :]
        a = tl.load(a_ptr + rows[:, None] * stride_am + k[None, :] * stride_ak, mask=a_mask, other=0.0)
        b = tl.load(b_ptr + k[:, None] * stride_bk + columns[None, :] * stride_bn, mask=b_mask, other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    c = acc  # TODO(newop): what is done to a sum before it is rounded, in fp32
    mask = (rows < M)[:, None] & (columns < N)[None, :]
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], c.to(c_ptr.dtype.element_ty), mask=mask)


def tiled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    (m, k), n = a.shape, b.shape[1]  # TODO(newop): the sizes; below, the strides of b along k and n
    c = a.new_empty(m, n)
    if c.numel():
        _launch(m, n, k, a.stride(), (b.stride(0), b.stride(1)))(c, a, b)
    return c


@plan
def _launch(m: int, n: int, k: int, a_strides: Ints, b_strides: Ints) -> Launch:
    tiles = cdiv(m, TILE["BLOCK_M"]) * cdiv(n, TILE["BLOCK_N"])
    return Launch(product_kernel, (tiles,), m, n, k, *a_strides, *b_strides, **TILE)


VARIANTS = {"tiled": Implementation(fn=tiled, idea="a 64x64 tile per program", arithmetic="mma")}
