"""matmul: c[m, n] = sum over k of a[m, k] * b[k, n], accumulated in fp32, rounded once.

simple      a 64x64 tile per program, programs in row-major order
grouped     the same tiles in an order whose neighbours in time share rows and columns in L2
pipelined   larger tiles, the loads of several steps under way while the tensor cores work
autotuned   the tile, depth and warps that were measured fastest for the shape, else chosen by rule
persistent  the copy engine (TMA) does the loads, and one program per SM keeps its pipeline full from tile to tile
specialised one warp only loads and two warpgroups only multiply, so neither ever waits for the other's instructions
"""

from __future__ import annotations

from typing import Any

import torch

from kernelmux.backends.triton._launch import cdiv
from kernelmux.backends.triton._tuned import winner
from kernelmux.backends.triton.matmul._blocked import blocked
from kernelmux.backends.triton.matmul._persistent import persistent
from kernelmux.backends.triton.matmul._specialised import specialised
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Aligned, AtLeast, Capability, Dtypes, Multiple

Config = dict[str, Any]


def _tile(m: int, n: int, k: int, warps: int, stages: int, group: int = 8, **more: Any) -> Config:
    return {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": group, "num_warps": warps, "num_stages": stages, **more}


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


def matmul_simple(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return blocked(a, b, precision, SIMPLE)


def matmul_grouped(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return blocked(a, b, precision, GROUPED)


def matmul_pipelined(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return blocked(a, b, precision, PIPELINED[a.element_size()])


def matmul_autotuned(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return blocked(a, b, precision, winner("matmul/autotuned", key(a, b, precision), a) or rule(a, b, precision))


def matmul_persistent(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    config = winner("matmul/persistent", key(a, b, precision), a) or persistent_rule(a, b)
    return persistent(a, b, precision, config)


def matmul_specialised(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return specialised(a, b, winner("matmul/specialised", key(a, b, precision), a) or specialised_rule(a, b))


MATRIX = {"a": "matrix", "b": "matrix"}
# What a tensor descriptor can describe: rows at multiples of 16 bytes.
DESCRIPTORS = (
    Capability((9, 0)),
    Dtypes("a", torch.float16, torch.bfloat16),
    *(AtLeast(size, 16) for size in "MNK"),
    *(Aligned(name) for name in "ab"),
    Multiple("N", 8),
)

VARIANTS = {
    "simple": Implementation(fn=matmul_simple, idea="a 64x64 tile per program", arithmetic="mma"),
    "grouped": Implementation(fn=matmul_grouped, idea="an order of tiles that meets in L2", arithmetic="mma"),
    "pipelined": Implementation(fn=matmul_pipelined, idea="larger tiles, loads ahead of the product", arithmetic="mma"),
    "autotuned": Implementation(fn=matmul_autotuned, idea="the tile measured fastest for the shape", arithmetic="mma"),
    "persistent": Implementation(
        fn=matmul_persistent, idea="TMA loads, one program per SM", requires=DESCRIPTORS, layout=MATRIX, arithmetic="mma"
    ),
    "specialised": Implementation(
        fn=matmul_specialised, idea="one warp loads, two warpgroups multiply",
        requires=(*DESCRIPTORS, AtLeast("M", 512), AtLeast("N", 512)), layout=MATRIX, arithmetic="mma",
    ),
}  # fmt: skip
