"""c[... M, N] = a[... M, K] @ b[... K, N]: from one thread per element to the asynchronous tensor cores.

naive           one thread per element
tiled           tiles of both operands in shared memory
register_tiled  8x16 elements per thread, the next tile in flight
tensor_cores    mma.sync behind cp.async, swizzled shared memory; fp32 as tf32
wgmma           TMA feeds warpgroup products in a persistent grid

Row-major operands and transposed views are read where they lie. Short of tiles, the last two split K. Every rung takes
batches, whose works it counts through, and can end in an epilogue, which linear uses.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple

import torch

from kernelmux.backends.cuda._families.epilogue import PLAIN, Epilogue, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import Source, cdiv
from kernelmux.backends.cuda.matmul._choice import THREADS, MatmulPlan, operand, problem, simple_kernel, simple_plan
from kernelmux.backends.cuda.matmul._tensor_cores import tensor_cores
from kernelmux.backends.cuda.matmul._tf32 import reads_in_place, wgmma
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost, Capability, Condition, Dtypes, Multiplies
from kernelmux.registry.util.batch_strides import readable
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__)
REGISTER_TILED = Source(__file__, "matmul_register_tiled.cu")


def naive(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: Epilogue) -> torch.Tensor:
    return _naive(layout(a), layout(b), epilogue.ending).run(a, b, epilogue)


def tiled(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: Epilogue) -> torch.Tensor:
    return _tiled(layout(a), layout(b), epilogue.ending).run(a, b, epilogue)


def register_tiled(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: Epilogue) -> torch.Tensor:
    return _register_tiled(layout(a), layout(b), epilogue.ending).run(a, b, epilogue)


@remembered
def _naive(a: Layout, b: Layout, end: EpilogueKind) -> MatmulPlan:
    p = problem(a, b)
    grid = cdiv(p.products * p.M * p.N, THREADS)
    return simple_plan(simple_kernel(SOURCE, "matmul_naive", p, end), grid, THREADS, p)


@remembered
def _tiled(a: Layout, b: Layout, end: EpilogueKind) -> MatmulPlan:
    p = problem(a, b)
    grid = p.products * cdiv(p.M, 32) * cdiv(p.N, 32)
    return simple_plan(simple_kernel(SOURCE, "matmul_tiled", p, end), grid, (32, THREADS // 32), p)


@remembered
def _register_tiled(a: Layout, b: Layout, end: EpilogueKind) -> MatmulPlan:
    p, size = problem(a, b), a.dtype.itemsize
    kernel = simple_kernel(
        REGISTER_TILED, "matmul_register_tiled", p, end, C_VECTOR=gcd(4, p.N),
        A_VECTOR=min(4, p.left.bytes // size), B_VECTOR=min(4, p.right.bytes // size),
    )  # fmt: skip
    grid = p.products * cdiv(p.M, 128) * cdiv(p.N, 128)
    return simple_plan(kernel, grid, 128 * 128 // (8 * 16), p)


@dataclass(frozen=True)
class Tf32Allowed:
    """fp32 operands may be rounded to tf32."""

    operand: str
    text: str = 'fp32 only with precision="tf32"'

    def check(self, call: Any) -> str | None:
        """None, or why the operands must stay fp32."""
        fp32 = call.arguments[self.operand].dtype == torch.float32
        refused = fp32 and call.arguments["precision"] != "tf32"
        return f'{self.operand} is fp32, needs precision="tf32" (or a 16-bit dtype)' if refused else None


@dataclass(frozen=True)
class Tf32Layout:
    """K is the contiguous index of fp32 operands, or the product is large enough to repay a transposed copy.

    A right operand that is one row-major matrix needs no copy, unless a bias or an activation follows.

    k_axes: of the operands that may have it strided, which axis K is.
    """

    k_axes: tuple[tuple[str, int], ...]
    right: str = "b"
    rows: str = "M"

    @property
    def text(self) -> str:
        """The condition in a few words."""
        needed = "fp32 with K strided only if K is a multiple of 4 and rows, N >= 512"
        return f"{needed}, but for one {self.right} with lines aligned to 16 bytes in a plain product"

    def check(self, call: Any) -> str | None:
        """None, or which operand is fp32 with K strided in a product too small to copy it."""
        M, N, K = (call.axes[axis] for axis in (self.rows, "N", "K"))
        strided = [name for name, axis in self.k_axes if self._is_copied(call, name, axis)]
        if call.dtype != torch.float32 or not strided or (K % 4 == 0 and min(M, N) >= 512):
            return None
        return f"{strided[0]} is fp32 with K strided, needs K contiguous, or K a multiple of 4 and rows, N >= 512"

    def _is_copied(self, call: Any, name: str, axis: int) -> bool:
        x = call.arguments[name]
        found = operand(layout(x), axis)
        plain = call.arguments.get("bias") is None and call.arguments.get("activation", "none") == "none"
        return not found.k_major and not (name == self.right and x.dim() == 2 and plain and reads_in_place(found))


class FactorNames(NamedTuple):
    """What an operator calls the factors of its product and the axis that counts the rows of the left one. k_axes: as in
    `Tf32Layout`."""

    left: str
    right: str
    k_axes: tuple[tuple[str, int], ...]
    rows: str = "M"


class MatmulRung(NamedTuple):
    """A way to compute a product: fn of a, b, the precision and an epilogue. requires: beside what all rungs do."""

    fn: Callable[..., torch.Tensor]
    idea: str
    arithmetic: str
    requires: Callable[[FactorNames], tuple[Condition, ...]] = lambda names: ()

    def conditions(self, names: FactorNames) -> tuple[Condition, ...]:
        """Everything that it requires of a product of these operands."""
        floats = Dtypes(names.left, torch.float32, torch.float16, torch.bfloat16)
        return (floats, *self.requires(names), *INDICES)


LARGEST = 2**31 - 512  # of an int, rounded up to whole tiles
INDICES = tuple(AtMost(axis, LARGEST) for axis in "MNK")


def _on_tensor_cores(names: FactorNames) -> tuple[Condition, ...]:
    return Tf32Allowed(names.left), Multiplies(names.left)


def _on_hopper(names: FactorNames) -> tuple[Condition, ...]:
    """Lines that TMA cannot read are copied first."""
    return (
        Tf32Allowed(names.left), Tf32Layout(names.k_axes, names.right, names.rows), Capability((9, 0), below=(10, 0)),
    )  # fmt: skip


RUNGS = {
    "naive": MatmulRung(naive, "one thread per element", "fp32_sequential"),
    "tiled": MatmulRung(tiled, "tiles of both operands in shared memory", "fp32_sequential"),
    "register_tiled": MatmulRung(register_tiled, "8x16 elements per thread", "fp32_sequential"),
    "tensor_cores": MatmulRung(tensor_cores, "mma.sync behind cp.async", "mma", _on_tensor_cores),
    "wgmma": MatmulRung(wgmma, "TMA feeds warpgroup products in a persistent grid", "mma", _on_hopper),
}


def _variant(rung: MatmulRung) -> Implementation:
    def matmul(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
        return rung.fn(*readable(a, b), precision, PLAIN)

    names = FactorNames("a", "b", (("a", 1), ("b", 0)), rows="rows")
    conditions = (*rung.conditions(names), AtMost("rows", LARGEST), AtMost("batches", LARGEST))
    return Implementation(matmul, rung.idea, conditions, {"a": "matrix", "b": "matrix"}, rung.arithmetic)


VARIANTS = {name: _variant(rung) for name, rung in RUNGS.items()}
