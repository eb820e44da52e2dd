"""matmul: c[m, n] = sum over k of a[m, k] * b[k, n], accumulated in fp32, rounded once.

simple      a 64x64 tile per program, programs in row-major order
grouped     the same tiles in an order whose neighbours in time share rows and columns in L2
pipelined   larger tiles, the loads of several steps under way while the tensor cores work
by_shape    the tile, depth, warps and shares of K by a rule over the shape, set by measurements on an H200
fp32        products on the FP32 pipes, from lines that a thread reads four k's of at a time; programs share K
bf16x6      large fp32 products on tensor cores at the accuracy of fp32: three bf16 numbers for one, six products of them
padded      lines that the copy engine (TMA) cannot take are copied first, where a product repays that; then as specialised
persistent  the copy engine does the loads, and the compiler keeps the pipeline of an SM full from tile to tile
specialised one warp only loads and two warpgroups only multiply, so neither ever waits for the other's instructions
few_rows    up to 64 rows of a: the columns of b are the rows of the products, programs share K
k_major     fp32 operands are transposed first to the only order in which tensor cores take tf32, then as persistent
from_registers  rows of an fp32 b become the left factor of c^T = b^T a^T, which may lie in registers: b is not copied

All but bf16x6 and the last take batches, whose tiles they count through, and all but the last can end in an epilogue, which
linear uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from kernelmux.backends.triton._launch.card import TensorCores
from kernelmux.backends.triton._launch.launch import Config
from kernelmux.backends.triton.matmul._bf16x6 import OneFactor, RepaysSplitting, bf16x6, bf16x6_rule
from kernelmux.backends.triton.matmul._blocked import blocked
from kernelmux.backends.triton.matmul._epilogue import PLAIN, EpilogueTensors
from kernelmux.backends.triton.matmul._few_rows import MOST_ROWS, few_rows, few_rows_rule
from kernelmux.backends.triton.matmul._few_rows_lines import few_rows_lines, few_rows_lines_rule
from kernelmux.backends.triton.matmul._fp32 import fp32
from kernelmux.backends.triton.matmul._fp32_tiles import by_pointers, fp32_rule, pointers_rule
from kernelmux.backends.triton.matmul._from_registers import from_registers
from kernelmux.backends.triton.matmul._padded import Misaligned, padded
from kernelmux.backends.triton.matmul._padded import readable as readable_lines
from kernelmux.backends.triton.matmul._persistent import persistent
from kernelmux.backends.triton.matmul._problem import MatmulShapes, problem
from kernelmux.backends.triton.matmul._register_tiles import SPACE as FROM_REGISTERS
from kernelmux.backends.triton.matmul._spaces import BY_SHAPE, K_MAJOR, PERSISTENT, SPECIALISED
from kernelmux.backends.triton.matmul._specialised import specialised
from kernelmux.backends.triton.matmul._tiles import GROUPED, ODD, PIPELINED, SIMPLE
from kernelmux.backends.triton.transpose import transpose_blocked
from kernelmux.registry.backend import Implementation
from kernelmux.registry.backend.search_space import Space
from kernelmux.registry.conditions import Aligned, AtLeast, AtMost, Capability, Condition, Dtypes, Multiple, OneOf
from kernelmux.registry.util.batch_strides import readable


def _simple(p: MatmulShapes) -> Config:
    return SIMPLE[p.dtype.itemsize]


def _grouped(p: MatmulShapes) -> Config:
    return GROUPED[p.dtype.itemsize]


def _pipelined(p: MatmulShapes) -> Config:
    return (PIPELINED if p.vectors else ODD)[p.dtype.itemsize]


def matmul_simple(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: EpilogueTensors) -> torch.Tensor:
    return blocked(a, b, precision, _simple, epilogue)


def matmul_grouped(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: EpilogueTensors) -> torch.Tensor:
    return blocked(a, b, precision, _grouped, epilogue)


def matmul_pipelined(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: EpilogueTensors) -> torch.Tensor:
    return blocked(a, b, precision, _pipelined, epilogue)


def matmul_by_shape(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: EpilogueTensors) -> torch.Tensor:
    return blocked(a, b, precision, BY_SHAPE.choice, epilogue)


def matmul_fp32(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: EpilogueTensors) -> torch.Tensor:
    if by_pointers(problem(a, b, precision, epilogue.ending)):
        return blocked(a, b, precision, pointers_rule, epilogue)
    return fp32(a, b, fp32_rule, epilogue)


def matmul_bf16x6(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: EpilogueTensors) -> torch.Tensor:
    return bf16x6(a, b, bf16x6_rule, epilogue)


def matmul_padded(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: EpilogueTensors) -> torch.Tensor:
    return padded(a, b, SPECIALISED.choice, BY_SHAPE.choice, epilogue)


def matmul_specialised(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: EpilogueTensors) -> torch.Tensor:
    return specialised(a, b, SPECIALISED.choice, epilogue)


def matmul_persistent(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: EpilogueTensors) -> torch.Tensor:
    return persistent(a, b, precision, PERSISTENT.choice, epilogue)


def matmul_few_rows(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: EpilogueTensors) -> torch.Tensor:
    aligned = readable_lines(b) and (readable_lines(a) or a.numel() == a.shape[-1])
    if problem(a, b, precision, epilogue.ending).batch is None and a.numel():
        if aligned:
            return few_rows(a, b, few_rows_rule, epilogue)
        if b.stride(0) == 1 and b.data_ptr() % 16 == 0:
            return few_rows_lines(a, b, few_rows_lines_rule, epilogue)
    return (matmul_by_shape if aligned else matmul_padded)(a, b, precision, epilogue)


def matmul_k_major(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: EpilogueTensors) -> torch.Tensor:
    # H200, 4096^3: turning b takes 34 us; the product takes 1588 us with b as it is and 354 us with b turned.
    b = b if b.stride(-2) == 1 else turned(b)
    return persistent(_k_contiguous(a), b, precision, K_MAJOR.choice, epilogue)


def matmul_from_registers(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    flat = _k_contiguous(a.reshape(-1, a.shape[-1]) if a.dim() > 2 else a)
    return from_registers(flat, b, FROM_REGISTERS.choice).view(*a.shape[:-1], b.shape[1])


def _k_contiguous(a: torch.Tensor) -> torch.Tensor:
    return a if a.stride(-1) == 1 else turned(a.mT).mT


def turned(x: torch.Tensor) -> torch.Tensor:
    """x [... K, N] with K contiguous: all its rows as one matrix, whose transpose holds those of x side by side."""
    flat = x.flatten(0, -2)
    return transpose_blocked(flat).view(x.shape[-1], *x.shape[:-1]).movedim(0, -1)


class TritonMatmulRung(NamedTuple):
    """A way to compute a product: fn of a, b, the precision and an epilogue. requires: given the names of the operands.
    space: of its tiles, if a search may choose among them. pays: of the calls that it can run, which ones it is for."""

    fn: Callable[..., torch.Tensor]
    idea: str
    requires: Callable[[ProductNames], tuple[Condition, ...]] = lambda names: (TensorCores(names.left),)
    space: Space | None = None
    pays: Callable[[ProductNames], tuple[Condition, ...]] = lambda names: ()


class ProductNames(NamedTuple):
    """What an operator calls the factors of its product, and the axis that counts the rows of the left one."""

    left: str
    right: str
    rows: str


def _descriptors(names: ProductNames) -> tuple[Condition, ...]:
    """What a tensor descriptor can describe: rows at multiples of 16 bytes. Products of fewer than 64 rows are bound by
    the memory and want more, narrower tiles than the variants with descriptors have."""
    aligned = Aligned(names.left), Aligned(names.right)
    return AtLeast(names.rows, 64), AtLeast("N", 16), AtLeast("K", 16), *aligned, Multiple("N", 8)


def _copied(names: ProductNames) -> tuple[Condition, ...]:
    halves = Dtypes(names.left, torch.float16, torch.bfloat16), Capability((9, 0), below=(10, 0))
    return *halves, Misaligned(names.left, names.right)


def _halves(names: ProductNames, below: tuple[int, int] | None = None) -> tuple[Condition, ...]:
    return Capability((9, 0), below), Dtypes(names.left, torch.float16, torch.bfloat16), *_descriptors(names)


@dataclass(frozen=True)
class KContiguous:
    """A left operand with K contiguous."""

    operand: str

    @property
    def text(self) -> str:
        """The condition in a few words."""
        return f"{self.operand} with K contiguous"

    def check(self, call: Any) -> str | None:
        """None, or how K lies."""
        x = call.arguments[self.operand]
        return None if x.stride(-1) == 1 else f"{self.operand} has K strided, needs K contiguous"


def _full_fp32(names: ProductNames) -> tuple[Condition, ...]:
    asked = Dtypes(names.left, torch.float32), OneOf("precision", "ieee"), KContiguous(names.left)
    return Capability((9, 0), below=(10, 0)), *asked


def _planes(names: ProductNames) -> tuple[Condition, ...]:
    asked = Dtypes(names.left, torch.float32), OneOf("precision", "ieee"), AtLeast("K", 1), OneFactor(names.right)
    return Capability((9, 0), below=(10, 0)), *asked, AtMost("K", LONGEST)


def _repays(names: ProductNames) -> tuple[Condition, ...]:
    return (RepaysSplitting(names.left, names.rows),)


def _few(names: ProductNames) -> tuple[Condition, ...]:
    """What a tensor descriptor can describe, of few rows."""
    sizes = AtMost(names.rows, MOST_ROWS), AtLeast("N", 16), AtLeast("K", 16)
    halves = Capability((9, 0), below=(10, 0)), Dtypes(names.left, torch.float16, torch.bfloat16)
    return *halves, *sizes


def _tf32(names: ProductNames) -> tuple[Condition, ...]:
    asked = Dtypes(names.left, torch.float32), OneOf("precision", "tf32"), Multiple("K", 4)
    return Capability((9, 0)), *asked, *_descriptors(names)


RUNGS = {
    "simple": TritonMatmulRung(matmul_simple, "a 64x64 tile per program"),
    "grouped": TritonMatmulRung(matmul_grouped, "an order of tiles that meets in L2"),
    "pipelined": TritonMatmulRung(matmul_pipelined, "larger tiles, loads ahead of the product"),
    "by_shape": TritonMatmulRung(matmul_by_shape, "the tile by a rule over the shape", space=BY_SHAPE),
    "fp32": TritonMatmulRung(matmul_fp32, "a thread reads four k's of a line at a time, programs share K", _full_fp32),
    "bf16x6": TritonMatmulRung(
        matmul_bf16x6, "six products of three bf16 numbers for each fp32 one", _planes, pays=_repays
    ),
    "padded": TritonMatmulRung(matmul_padded, "lines that TMA cannot take are copied first", _copied),
    "persistent": TritonMatmulRung(matmul_persistent, "TMA loads, one program per SM", _halves, PERSISTENT),
    "specialised": TritonMatmulRung(
        matmul_specialised, "one warp loads, two warpgroups multiply", partial(_halves, below=(10, 0)), SPECIALISED
    ),
    "few_rows": TritonMatmulRung(matmul_few_rows, "columns of b are the rows of the products, programs share K", _few),
    "k_major": TritonMatmulRung(matmul_k_major, "both operands K-major first, then as persistent", _tf32, K_MAJOR),
}


@dataclass(frozen=True)
class OneMatrix:
    """A right operand that is one matrix, not a batch, with N contiguous."""

    operand: str

    @property
    def text(self) -> str:
        """The condition in a few words."""
        return f"{self.operand} one matrix with N contiguous"

    def check(self, call: Any) -> str | None:
        """None, or what the operand is."""
        x = call.arguments[self.operand]
        if x.dim() != 2:
            return f"{self.operand} is a batch of matrices, needs one"
        return None if x.stride(1) == 1 else f"{self.operand} has N strided, needs N contiguous"


LONGEST = 2**22  # K, of which sums of planes, at most 2^104, stay below the largest fp32
BATCHES = AtMost("batches", 2**31 - 1)  # programs that a grid has
NAMES = ProductNames("a", "b", "rows")


def _variant(rung: TritonMatmulRung) -> Implementation:
    def matmul(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
        return rung.fn(*readable(a, b), precision, PLAIN)

    requires = (*rung.requires(NAMES), BATCHES)
    layout = (
        {"a": "matrix", "b": "matrix"}
        if rung.fn in (matmul_fp32, matmul_bf16x6, matmul_padded, matmul_few_rows) or Aligned(NAMES.left) in requires
        else {}
    )
    return Implementation(
        matmul, rung.idea, requires, layout, arithmetic="mma", space=rung.space, pays=rung.pays(NAMES)
    )


VARIANTS = {name: _variant(rung) for name, rung in RUNGS.items()}
VARIANTS["from_registers"] = Implementation(
    matmul_from_registers,
    "a row-major b is read into registers, the left factor of c^T",
    (OneMatrix("b"), Capability((9, 0), below=(10, 0)), *_tf32(NAMES)[1:], BATCHES),
    {"a": "matrix", "b": "matrix"},
    arithmetic="mma",
    space=FROM_REGISTERS,
)
