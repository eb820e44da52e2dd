"""matmul: c[m, n] = sum over k of a[m, k] * b[k, n], accumulated in fp32, rounded once.

simple      a 64x64 tile per program, programs in row-major order
grouped     the same tiles in an order whose neighbours in time share rows and columns in L2
pipelined   larger tiles, the loads of several steps under way while the tensor cores work
autotuned   the tile, depth and warps that were measured fastest for the shape, else chosen by rule
persistent  the copy engine (TMA) does the loads, and one program per SM keeps its pipeline full from tile to tile
specialised one warp only loads and two warpgroups only multiply, so neither ever waits for the other's instructions
"""

from __future__ import annotations

import torch

from kernelmux.backends.triton._tuned import winner
from kernelmux.backends.triton.matmul._blocked import blocked
from kernelmux.backends.triton.matmul._persistent import persistent
from kernelmux.backends.triton.matmul._specialised import specialised
from kernelmux.backends.triton.matmul._tiles import (
    GROUPED,
    PIPELINED,
    SIMPLE,
    key,
    persistent_rule,
    rule,
    specialised_rule,
)
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Aligned, AtLeast, Capability, Condition, Dtypes, Multiple


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
# What a tensor descriptor can describe: rows at multiples of 16 bytes. Products of fewer than 64 rows are bound by the
# memory and want more, narrower tiles than the variants with descriptors have.
DESCRIPTORS: tuple[Condition, ...] = (
    Capability((9, 0)),
    Dtypes("a", torch.float16, torch.bfloat16),
    AtLeast("M", 64),
    *(AtLeast(size, 16) for size in "NK"),
    *(Aligned(name) for name in "ab"),
    Multiple("N", 8),
)

VARIANTS = {
    "simple": Implementation(fn=matmul_simple, idea="a 64x64 tile per program", arithmetic="mma"),
    "grouped": Implementation(fn=matmul_grouped, idea="an order of tiles that meets in L2", arithmetic="mma"),
    "pipelined": Implementation(fn=matmul_pipelined, idea="larger tiles, loads ahead of the product", arithmetic="mma"),
    "autotuned": Implementation(fn=matmul_autotuned, idea="the tile measured fastest for the shape", arithmetic="mma"),
    "persistent": Implementation(
        fn=matmul_persistent, idea="TMA loads, one program per SM",
        requires=DESCRIPTORS, layout=MATRIX, arithmetic="mma",
    ),
    "specialised": Implementation(
        fn=matmul_specialised, idea="one warp loads, two warpgroups multiply",
        requires=DESCRIPTORS, layout=MATRIX, arithmetic="mma",
    ),
}  # fmt: skip
