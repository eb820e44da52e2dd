"""Tiles for matmul: the fixed ones of the first rungs, and the rules of the others."""

from __future__ import annotations

from typing import Any

import torch

from kernelmux.backends.triton._launch import Config, cdiv, processors
from kernelmux.backends.triton.matmul._problem import Problem


def _tile(m: int, n: int, k: int, warps: int, stages: int, group: int = 8, **more: Any) -> Config:
    tile = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": group}
    return {**tile, "num_warps": warps, "num_stages": stages, **more}


# By element size: 64 bytes of K per step.
SIMPLE = {2: _tile(64, 64, 32, warps=4, stages=1, group=1), 4: _tile(64, 64, 16, warps=4, stages=1, group=1)}
GROUPED = {2: _tile(64, 64, 32, warps=4, stages=1), 4: _tile(64, 64, 16, warps=4, stages=1)}
PIPELINED = {2: _tile(128, 128, 64, warps=8, stages=3), 4: _tile(64, 128, 16, warps=8, stages=3)}

# Operands that are loaded element by element keep an address for each: larger tiles spill, on sm_80 first.
ODD = {2: _tile(128, 64, 32, warps=8, stages=3), 4: _tile(64, 64, 16, warps=4, stages=3)}


def rule(p: Problem) -> Config:
    """Large tiles reuse more; smaller ones, or several programs for each, where large ones leave SMs without work."""
    if p.M <= 32:
        return skinny_rule(p)
    if not p.vectors:
        return ODD[p.dtype.itemsize]
    if p.tiles(128, 128) < 100:
        return _tile(64, 64 if p.dtype.itemsize == 4 else 128, 128 // p.dtype.itemsize, warps=4, stages=4)
    if p.dtype == torch.float32:
        # H200, 4096^3: 3162 us; 3331 with 64 x 64 x 16, cuBLAS 2683.
        return _tile(128, 128, 32, warps=4, stages=3) if p.precision == "tf32" else _tile(128, 64, 32, 8, 3)
    # H200, 8192^3: 770 TFLOP/s with rows of b contiguous, but 532 with columns, where square tiles reach 566.
    wide = min(p.M, p.N) >= 2048 and p.layouts == "rr"
    return _tile(128, 256, 64, warps=8, stages=3) if wide else _tile(128, 128, 64, warps=8, stages=4)


def skinny_rule(p: Problem) -> Config:
    """A few rows: the time is that of reading b once, for which each SM should have a program or more.

    H200, 16 x 4096 by 4096 x 14336 bf16: 40 us, as cuBLAS; halves and quarters of K 52 us with their sum.
    """
    tile = _tile(16, 64, 256 // p.dtype.itemsize, warps=4, stages=4)
    steps, tiles = cdiv(p.K, tile["BLOCK_K"]), max(p.tiles(16, 64), 1)
    split = max(min(processors(p.device) // tiles, steps // 4), 1)
    return {**tile, "SPLIT_K": 1 << (split.bit_length() - 1)}


def _wide(p: Problem) -> bool:
    """Whether tiles of 128 x 256 take no more rounds of all SMs than those of 128 x 128, each twice as long."""
    sms = processors(p.device)
    return 2 * cdiv(p.tiles(128, 256), sms) <= cdiv(p.tiles(128, 128), sms)


def persistent_rule(p: Problem) -> Config:
    """As `rule`, for tiles whose output leaves through shared memory too."""
    if p.tiles(128, 128) < 100:  # H200, 512 x 7168 by 7168 x 2048: 31 us, 45 with 64 of K a step
        return _tile(64, 128, 128, warps=4, stages=4, SUBTILES=1)
    # H200, bf16: 793 TFLOP/s at 8192^3; at 3072^3 528, but 617 with the narrow tile.
    return _tile(128, 256, 64, warps=8, stages=4, SUBTILES=2) if _wide(p) else _tile(128, 128, 64, 4, 5, SUBTILES=1)


def specialised_rule(p: Problem) -> Config:
    """The tile with which whole rounds of all SMs take the least time, by products per microsecond of one SM.

    H200, bf16: 791 TFLOP/s at 8192^3; at 3072^3 546 with the widest tile, but 619 with the next one.
    """
    sms = processors(p.device)

    def microseconds(tile: tuple[int, int, int, float]) -> float:
        m, n, _, rate = tile
        return cdiv(p.tiles(m, n), sms) * (0.5 + m * n * p.K / rate)

    m, n, stages, _ = min(((128, 256, 4, 3.05e6), (128, 128, 6, 2.95e6), (64, 128, 8, 2.15e6)), key=microseconds)
    return {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 64, "GROUP_M": 8, "STAGES": stages}


def k_major_rule(p: Problem) -> Config:
    """H200, 4096^3: 353 TFLOP/s with b to be turned, 388 without; cuBLAS 393 and 400."""
    if p.tiles(128, 128) < 100:
        return _tile(64, 64, 32, warps=4, stages=4, SUBTILES=1)
    # At 3072^3 222 us with the wide tile, 199 with the narrow one.
    return _tile(128, 256, 32, warps=8, stages=3, SUBTILES=2) if _wide(p) else _tile(128, 128, 32, 4, 5, SUBTILES=1)
