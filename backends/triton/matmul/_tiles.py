"""Tiles for matmul: the fixed ones of the first rungs, the rules of the others, and what a search tries."""

from __future__ import annotations

from typing import Any

import torch

from kernelmux.backends.triton._launch import Config, cdiv, processors
from kernelmux.backends.triton.matmul._problem import Problem


def _tile(m: int, n: int, k: int, warps: int, stages: int, group: int = 8, **more: Any) -> Config:
    tile = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": group}
    return {**tile, "num_warps": warps, "num_stages": stages, **more}


SIMPLE = _tile(64, 64, 32, warps=4, stages=1, group=1)
GROUPED = _tile(64, 64, 32, warps=4, stages=1)
PIPELINED = {2: _tile(128, 128, 64, warps=8, stages=3), 4: _tile(128, 64, 32, warps=8, stages=3)}

# Operands that are loaded element by element keep an address for each: larger tiles spill, on sm_80 first.
ODD = {2: _tile(128, 64, 32, warps=8, stages=3), 4: _tile(64, 64, 16, warps=4, stages=3)}

# What a search tries, by element size.
SPACE: dict[int, tuple[Config, ...]] = {
    2: (
        _tile(128, 256, 64, warps=8, stages=3),
        _tile(128, 256, 64, warps=8, stages=4),
        _tile(256, 128, 64, warps=8, stages=3),
        _tile(256, 128, 64, warps=8, stages=4),
        _tile(128, 128, 64, warps=8, stages=4),
        _tile(128, 128, 64, warps=4, stages=4),
        _tile(128, 128, 128, warps=8, stages=3),
        _tile(64, 128, 64, warps=4, stages=4),
        _tile(64, 64, 64, warps=4, stages=5),
        _tile(64, 64, 128, warps=4, stages=4),
        _tile(16, 64, 128, warps=4, stages=5),
    ),
    4: (
        _tile(128, 256, 32, warps=8, stages=3),
        _tile(128, 128, 32, warps=8, stages=4),
        _tile(128, 128, 32, warps=4, stages=3),
        _tile(128, 64, 32, warps=8, stages=3),
        _tile(64, 64, 32, warps=4, stages=4),
        _tile(128, 128, 16, warps=8, stages=3),
        _tile(128, 64, 16, warps=4, stages=3),
        _tile(64, 64, 16, warps=4, stages=3),
        _tile(32, 64, 32, warps=4, stages=4),
    ),
}
PERSISTENT_SPACE: tuple[Config, ...] = (
    _tile(128, 256, 64, warps=8, stages=3, SUBTILES=1),
    _tile(128, 256, 64, warps=8, stages=3, SUBTILES=2),
    _tile(128, 256, 64, warps=8, stages=4, SUBTILES=2),
    _tile(256, 128, 64, warps=8, stages=3, SUBTILES=1),
    _tile(256, 128, 64, warps=8, stages=4, SUBTILES=2),
    _tile(128, 128, 64, warps=8, stages=4, SUBTILES=1),
    _tile(128, 128, 64, warps=4, stages=4, SUBTILES=1),
    _tile(64, 128, 64, warps=4, stages=4, SUBTILES=1),
)

SPECIALISED_SPACE: tuple[Config, ...] = (
    {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8, "STAGES": 4},
    {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 16, "STAGES": 4},
    {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 4, "STAGES": 4},
    {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8, "STAGES": 3},
    {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8, "STAGES": 6},
    {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 128, "GROUP_M": 8, "STAGES": 3},
)


def rule(p: Problem) -> Config:
    """Large tiles reuse more; smaller ones, or several programs for each, where large ones leave SMs without work."""
    if p.M <= 32:
        return skinny_rule(p)
    if not p.vectors:
        return ODD[p.dtype.itemsize]
    if cdiv(p.M, 128) * cdiv(p.N, 128) < 100:
        return _tile(64, 64 if p.dtype.itemsize == 4 else 128, 128 // p.dtype.itemsize, warps=4, stages=4)
    if p.dtype == torch.float32:
        return _tile(128, 128, 32, warps=4, stages=3) if p.precision == "tf32" else _tile(64, 64, 16, warps=4, stages=3)
    # H200, 8192^3: 738 TFLOP/s with rows of b contiguous, but 532 with columns, where square tiles reach 566.
    wide = min(p.M, p.N) >= 2048 and p.layouts == "rr"
    return _tile(128, 256, 64, warps=8, stages=3) if wide else _tile(128, 128, 64, warps=8, stages=4)


def skinny_rule(p: Problem) -> Config:
    """A few rows: the time is that of reading b once, which takes about 4 programs on every SM."""
    tile = _tile(16, 64, 256 // p.dtype.itemsize, warps=4, stages=4)
    steps, tiles = cdiv(p.K, tile["BLOCK_K"]), cdiv(p.N, tile["BLOCK_N"])
    split = max(min(4 * processors(p.device) // max(tiles, 1), steps // 4), 1)
    return {**tile, "SPLIT_K": 1 << (split.bit_length() - 1)}


def persistent_rule(p: Problem) -> Config:
    """As `rule`, for tiles whose output leaves through shared memory too."""
    if cdiv(p.M, 128) * cdiv(p.N, 128) < 100:
        return _tile(64, 128, 64, warps=4, stages=4, SUBTILES=1)
    if cdiv(p.M, 128) * cdiv(p.N, 256) < 256:
        return _tile(128, 128, 64, warps=4, stages=4, SUBTILES=1)
    # H200, 8192^3 bf16: 792 TFLOP/s, cuBLAS 784; with b transposed 804 and 747.
    return _tile(128, 256, 64, warps=8, stages=4, SUBTILES=2)


def specialised_rule(p: Problem) -> Config:
    """The wide tile where it gives every SM work twice."""
    return SPECIALISED_SPACE[0 if cdiv(p.M, 128) * cdiv(p.N, 256) >= 256 else 4]


def k_major_rule(p: Problem) -> Config:
    """For fp32 at tf32: 128 bytes of K per step."""
    if cdiv(p.M, 128) * cdiv(p.N, 128) < 100:
        return _tile(64, 64, 32, warps=4, stages=4, SUBTILES=1)
    return _tile(128, 128, 32, warps=4, stages=4, SUBTILES=1)
