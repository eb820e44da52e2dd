"""Tiles for matmul: the fixed ones of the first rungs, the rules of the others, and what a search tries."""

from __future__ import annotations

from typing import Any

import torch

from kernelmux.backends.triton._launch import cdiv

Config = dict[str, Any]


def _tile(m: int, n: int, k: int, warps: int, stages: int, group: int = 8, **more: Any) -> Config:
    tile = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": group}
    return {**tile, "num_warps": warps, "num_stages": stages, **more}


SIMPLE = _tile(64, 64, 32, warps=4, stages=1, group=1)
GROUPED = _tile(64, 64, 32, warps=4, stages=1)
PIPELINED = {2: _tile(128, 128, 64, warps=8, stages=3), 4: _tile(128, 64, 32, warps=8, stages=3)}

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


def key(a: torch.Tensor, b: torch.Tensor, precision: str) -> str:
    """The class of a call in the table of winners: dtype, layouts, and sizes to the next power of two."""
    layout = "".join("r" if x.stride(1) == 1 else "c" for x in (a, b))
    sizes = "x".join(str(1 << max(n - 1, 0).bit_length()) for n in (*a.shape, b.shape[1]))
    dtype = str(a.dtype).removeprefix("torch.") + (f"/{precision}" if a.dtype == torch.float32 else "")
    return f"{dtype} {layout} {sizes}"


def rule(a: torch.Tensor, b: torch.Tensor, precision: str) -> Config:
    """Large tiles reuse more; smaller ones where large ones would leave SMs without work."""
    (M, _), N = a.shape, b.shape[1]
    if M <= 32:
        return _tile(16, 64, 128 // a.element_size() * 2, warps=4, stages=4)
    if cdiv(M, 128) * cdiv(N, 128) < 100:
        return _tile(64, 64, 128 // a.element_size(), warps=4, stages=4)
    if a.dtype == torch.float32:
        return _tile(128, 128, 32, warps=8, stages=4) if precision == "tf32" else _tile(128, 64, 16, warps=4, stages=3)
    return _tile(128, 128, 64, warps=8, stages=4) if min(M, N) < 2048 else _tile(128, 256, 64, warps=8, stages=3)


def persistent_rule(a: torch.Tensor, b: torch.Tensor) -> Config:
    """As `rule`, for tiles whose output leaves through shared memory too."""
    (M, _), N = a.shape, b.shape[1]
    if cdiv(M, 128) * cdiv(N, 128) < 100:
        return _tile(64, 64, 64, warps=4, stages=4, SUBTILES=1)
    if min(M, N) < 2048:
        return _tile(128, 128, 64, warps=8, stages=4, SUBTILES=1)
    return _tile(128, 256, 64, warps=8, stages=4, SUBTILES=2)


def specialised_rule(a: torch.Tensor, b: torch.Tensor) -> Config:
    """The wide tile where it gives every SM work."""
    tiles = cdiv(a.shape[0], 128) * cdiv(b.shape[1], 256)
    return SPECIALISED_SPACE[0 if tiles >= 132 else 4]
