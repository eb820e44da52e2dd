"""The tiled product over tensor descriptors: the copy engine (TMA) fills shared memory, and programs stay on their SM.

One program per SM walks the tiles in grouped order, so that the loads of the next tile start while this one is stored.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernelmux.backends.triton._launch import cdiv, launch, processors
from kernelmux.backends.triton.matmul._blocked import tile_of


@triton.jit
def matmul_persistent_kernel(
    c_desc, a_desc, b_desc, M, N, K, A_ROWS: tl.constexpr, B_ROWS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SUBTILES: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    # Flattened, both loops are one pipeline: it does not drain between tiles.
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        tile_m, tile_n = tile_of(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m = tile_m * BLOCK_M
        n = tile_n * BLOCK_N

        # [BLOCK_M, BLOCK_N]
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for k in range(0, K, BLOCK_K):
            a = a_desc.load([m, k]) if A_ROWS else a_desc.load([k, m]).T
            b = b_desc.load([k, n]) if B_ROWS else b_desc.load([n, k]).T
            acc = tl.dot(a, b, acc, input_precision=PRECISION)

        # Half a tile at a time needs half the shared memory, which the pipeline has better use for.
        if SUBTILES == 2:
            halves = tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
            left, right = tl.split(halves)
            c_desc.store([m, n], left.to(c_desc.dtype))
            c_desc.store([m, n + BLOCK_N // 2], right.to(c_desc.dtype))
        else:
            c_desc.store([m, n], acc.to(c_desc.dtype))


def persistent(a: torch.Tensor, b: torch.Tensor, precision: str, config: dict[str, Any]) -> torch.Tensor:
    """a @ b with one program per SM."""
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    if c.numel() == 0:
        return c
    block_m, block_n, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    programs = min(processors(a), cdiv(M, block_m) * cdiv(N, block_n))
    c_desc = TensorDescriptor.from_tensor(c, [block_m, block_n // config["SUBTILES"]])
    launch(
        matmul_persistent_kernel, (programs,), c_desc, _descriptor(a, block_m, block_k),
        _descriptor(b, block_k, block_n), M, N, K,
        A_ROWS=a.stride(1) == 1, B_ROWS=b.stride(1) == 1, PRECISION=precision, **config,
    )  # fmt: skip
    return c


def _descriptor(x: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Of x, or of its transpose where the columns are what is contiguous."""
    if x.stride(1) == 1:
        return TensorDescriptor.from_tensor(x, [rows, columns])
    return TensorDescriptor.from_tensor(x.t(), [columns, rows])
