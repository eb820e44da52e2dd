"""matmul: c[m, n] = sum over k of a[m, k] * b[k, n], accumulated in fp32, rounded once.

simple      a 64x64 tile per program, programs in row-major order
grouped     the same tiles in an order whose neighbours in time share rows and columns in L2
pipelined   larger tiles, the loads of several steps under way while the tensor cores work
by_shape    the tile, depth, warps and shares of K by a rule over the shape, set by measurements on an H200
persistent  the copy engine (TMA) does the loads, and the compiler keeps the pipeline of an SM full from tile to tile
specialised one warp only loads and two warpgroups only multiply, so neither ever waits for the other's instructions
k_major     fp32 operands are transposed first to the only order in which tensor cores take tf32, then as persistent
"""

from __future__ import annotations

import torch

from kernelmux.backends.triton._launch import Config
from kernelmux.backends.triton.matmul._blocked import blocked
from kernelmux.backends.triton.matmul._persistent import persistent
from kernelmux.backends.triton.matmul._problem import Problem
from kernelmux.backends.triton.matmul._specialised import specialised
from kernelmux.backends.triton.matmul._tiles import (
    GROUPED,
    ODD,
    PIPELINED,
    SIMPLE,
    k_major_rule,
    persistent_rule,
    rule,
    specialised_rule,
)
from kernelmux.backends.triton.transpose import transpose_blocked
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Aligned, AtLeast, Capability, Condition, Dtypes, Multiple, OneOf


def _simple(p: Problem) -> Config:
    return SIMPLE[p.dtype.itemsize]


def _grouped(p: Problem) -> Config:
    return GROUPED[p.dtype.itemsize]


def _pipelined(p: Problem) -> Config:
    return (PIPELINED if p.vectors else ODD)[p.dtype.itemsize]


def matmul_simple(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return blocked(a, b, precision, _simple)


def matmul_grouped(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return blocked(a, b, precision, _grouped)


def matmul_pipelined(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return blocked(a, b, precision, _pipelined)


def matmul_by_shape(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return blocked(a, b, precision, rule)


def matmul_specialised(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return specialised(a, b, specialised_rule)


def matmul_persistent(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    return persistent(a, b, precision, persistent_rule)


def matmul_k_major(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    # H200, 4096^3: turning b takes 34 us; the product takes 1588 us with b as it is and 354 us with b turned.
    a = a if a.stride(1) == 1 else transpose_blocked(a.t())
    b = b if b.stride(0) == 1 else transpose_blocked(b).t()
    return persistent(a, b, precision, k_major_rule)


MATRIX = {"a": "matrix", "b": "matrix"}
# What a tensor descriptor can describe: rows at multiples of 16 bytes. Products of fewer than 64 rows are bound by the
# memory and want more, narrower tiles than the variants with descriptors have.
DESCRIPTORS: tuple[Condition, ...] = (
    AtLeast("M", 64),
    *(AtLeast(size, 16) for size in "NK"),
    *(Aligned(name) for name in "ab"),
    Multiple("N", 8),
)
HALVES = Dtypes("a", torch.float16, torch.bfloat16)

VARIANTS = {
    "simple": Implementation(fn=matmul_simple, idea="a 64x64 tile per program", arithmetic="mma"),
    "grouped": Implementation(fn=matmul_grouped, idea="an order of tiles that meets in L2", arithmetic="mma"),
    "pipelined": Implementation(fn=matmul_pipelined, idea="larger tiles, loads ahead of the product", arithmetic="mma"),
    "by_shape": Implementation(fn=matmul_by_shape, idea="the tile by a rule over the shape", arithmetic="mma"),
    "persistent": Implementation(
        fn=matmul_persistent, idea="TMA loads, one program per SM",
        requires=(Capability((9, 0)), HALVES, *DESCRIPTORS), layout=MATRIX, arithmetic="mma",
    ),
    "specialised": Implementation(
        fn=matmul_specialised, idea="one warp loads, two warpgroups multiply",
        requires=(Capability((9, 0), below=(10, 0)), HALVES, *DESCRIPTORS), layout=MATRIX, arithmetic="mma",
    ),
    "k_major": Implementation(
        fn=matmul_k_major, idea="both operands K-major first, then as persistent",
        requires=(Capability((9, 0)), Dtypes("a", torch.float32), OneOf("precision", "tf32"), Multiple("K", 4),
                  *DESCRIPTORS), layout=MATRIX, arithmetic="mma",
    ),
}  # fmt: skip
