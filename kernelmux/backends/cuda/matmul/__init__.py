"""c[... M, N] = a[... M, K] @ b[... K, N]: from one thread per element to the asynchronous tensor cores.

naive           one thread per element
tiled           tiles of both operands in shared memory
register_tiled  4x4 to 8x16 elements per thread, the next tile in flight; short of tiles, blocks share K
bf16x6          fp32 as three planes of bf16, whose six products wgmma computes
tensor_cores    mma.sync behind cp.async, swizzled shared memory; fp32 as tf32
wgmma           TMA feeds warpgroup products in a persistent grid

Row-major operands and transposed views are read where they lie. Short of tiles, the last two split K. Every rung takes
batches, whose works it counts through, and can end in an epilogue, which linear uses.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from kernelmux.backends.cuda._families.epilogue import PLAIN, Epilogue, EpilogueKind
from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda._launch.runtime import Source, cdiv
from kernelmux.backends.cuda.matmul._bf16x6 import bf16x6
from kernelmux.backends.cuda.matmul._choice import (
    HOPPER_MEMORY,
    THREADS,
    MatmulPlan,
    operand,
    problem,
    simple_kernel,
    simple_plan,
)
from kernelmux.backends.cuda.matmul._copied_tiles import register_tiled
from kernelmux.backends.cuda.matmul._few_rows import MOST_ROWS
from kernelmux.backends.cuda.matmul._few_rows_lines import any_lines
from kernelmux.backends.cuda.matmul._tensor_cores import tensor_cores
from kernelmux.backends.cuda.matmul._tf32 import reads_in_place, wgmma
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Aligned, AtMost, Capability, Condition, Dtypes, Multiplies
from kernelmux.registry.util.batch_strides import readable
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__)


def naive(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: Epilogue) -> torch.Tensor:
    return _naive(layout(a), layout(b), epilogue.ending).run(a, b, epilogue)


def tiled(a: torch.Tensor, b: torch.Tensor, precision: str, epilogue: Epilogue) -> torch.Tensor:
    return _tiled(layout(a), layout(b), epilogue.ending).run(a, b, epilogue)


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
    """K, at least 2, is the contiguous index of fp32 operands, or the product is large enough to repay a transposed copy.

    A right operand that is one row-major matrix needs no copy, unless a bias or an activation follows.

    k_axes: of the operands that may have it strided, which axis K is.
    """

    k_axes: tuple[tuple[str, int], ...]
    right: str = "b"
    rows: str = "M"

    @property
    def text(self) -> str:
        """The condition in a few words."""
        needed = "fp32 with K >= 2; with K strided only if K is a multiple of 4 and rows, N >= 512"
        return f"{needed}, but for one {self.right} with lines aligned to 16 bytes in a plain product"

    def check(self, call: Any) -> str | None:
        """None, or which operand is fp32 with K strided in a product too small to copy it."""
        M, N, K = (call.axes[axis] for axis in (self.rows, "N", "K"))
        strided = [name for name, axis in self.k_axes if self._is_copied(call, name, axis)]
        if call.dtype == torch.float32 and K == 1:
            return "K = 1 in fp32, needs K of at least 2"
        if call.dtype != torch.float32 or not strided or (K % 4 == 0 and min(M, N) >= 512):
            return None
        return f"{strided[0]} is fp32 with K strided, needs K contiguous, or K a multiple of 4 and rows, N >= 512"

    def _is_copied(self, call: Any, name: str, axis: int) -> bool:
        x = call.arguments[name]
        found = operand(layout(x), axis)
        plain = call.arguments.get("bias") is None and call.arguments.get("activation", "none") == "none"
        return not found.k_major and not (name == self.right and x.dim() == 2 and plain and reads_in_place(found))


@dataclass(frozen=True)
class RepaysCopies:
    """Operands that TMA can read where they lie, or a product large enough to repay copies of them; fp32 always does.

    What is saved is the time of mma.sync, which reads any lines, above that of wgmma. Of few rows, b is not copied.

    k_axis: of the right operand.
    """

    left: str
    right: str
    k_axis: int
    rows: str = "M"

    @property
    def text(self) -> str:
        """The condition in a few words."""
        return f"{self.left} and {self.right} aligned to 16 bytes, or fp32, or a product that repays copies of them"

    def check(self, call: Any) -> str | None:
        """None, or which operands would have to be copied for a small product."""
        if call.dtype == torch.float32:
            return None
        names = [name for name in (self.left, self.right) if Aligned(name).check(call)]
        copied = [call.arguments[name] for name in names if name == self.left or not self._in_place(call)]
        M, N, K = (call.axes[axis] for axis in (self.rows, "N", "K"))
        shifted = not any(layout(call.arguments[name]).offset for name in names)
        units = [_unit(name, call) for name in names]
        saved = mma_sync(M, N, K, call.axes.get("batches", 1), units, shifted=shifted)
        if saved >= sum(COPY + 2 * x.numel() * x.element_size() / HOPPER_MEMORY for x in copied):
            return None
        return f"the product is too small to repay aligned copies of {' and '.join(names)}"

    def _in_place(self, call: Any) -> bool:
        few = call.axes[self.rows] <= MOST_ROWS and call.dtype != torch.float32
        return few and any_lines(layout(call.arguments[self.right]), self.k_axis)


@dataclass(frozen=True)
class RepaysPlanes:
    """A product large enough to repay what splits its operands and what checks behind it whether that was right."""

    rows: str = "M"
    text: str = "a product that repays splitting its operands"

    def check(self, call: Any) -> str | None:
        """None, or that the product is too small."""
        M, N, K = (call.axes[axis] for axis in (self.rows, "N", "K"))
        products = call.axes.get("batches", 1)
        whole = cdiv(M, 128) * cdiv(N, 128) * 128**2 * cdiv(K, 64) * 64
        saved = 2 * products * (M * N * K / PLAIN_FP32 - whole / BF16X6)
        if saved >= SPLITTING + 10 * products * K * (M + N) / HOPPER_MEMORY:
            return None
        return f"{products} x {M} x {N} x {K} is too small to repay splitting the operands"


class FactorNames(NamedTuple):
    """What an operator calls the factors of its product and the axis that counts the rows of the left one. k_axes: as in
    `Tf32Layout`."""

    left: str
    right: str
    k_axes: tuple[tuple[str, int], ...]
    rows: str = "M"


class MatmulRung(NamedTuple):
    """A way to compute a product: fn of a, b, the precision and an epilogue. requires: beside what all rungs do. pays: of
    the calls that it can run, which ones it is for."""

    fn: Callable[..., torch.Tensor]
    idea: str
    arithmetic: str
    requires: Callable[[FactorNames], tuple[Condition, ...]] = lambda names: ()
    pays: Callable[[FactorNames], tuple[Condition, ...]] = lambda names: ()

    def conditions(self, names: FactorNames) -> tuple[Condition, ...]:
        """Everything that it requires of a product of these operands."""
        floats = Dtypes(names.left, torch.float32, torch.float16, torch.bfloat16)
        return (floats, *self.requires(names), *INDICES)


# Microseconds for each operation on whole tiles that wgmma is ahead of mma.sync by, where that copies 4 and 8 bytes at a
# time to shared memory; of one step along K that shifts lines there, and for each tile that is under way, or that copies
# 2 bytes at a time, which waits for memory; of a copy beside its bytes. H200, us, by mma.sync and by copies: 500 x 1001
# by 1001 x 1001 22.5 and 21.7, by 2 bytes 55.7, 1024 x 2002 by 2002 x 2002 59.4 and 31.4, 256 x 1002 by 1002 x 1003 17.7
# and 20.5, 17 x 4100 by 4100 x 4100 26.5 and 44.4, 64 products of 197 x 64 by 64 x 197 13.5 and 17.5, 20 of 1326 x 232
# by 232 x 109 26.3 and 22.6.
SAVED = {4: 1 / 150e6 - 1 / 700e6, 8: 1 / 400e6 - 1 / 700e6}
STEP_SHIFTED, TILE_SHIFTED, STEP_OF_HALVES, COPY = 0.2, 1.6 / 264, 2.5, 2.0


def _unit(name: str, call: Any) -> int:
    """Bytes, up to 8, at multiples of which all lines of an operand begin."""
    return next((n for n in (8, 4) if not Aligned(name, n).check(call)), 2)


def mma_sync(M: int, N: int, K: int, products: int, units: list[int], *, shifted: bool) -> float:
    """Microseconds by which mma.sync is behind on operands whose lines begin at multiples of so many bytes.

    shifted: if those are 2, lines are read in whole vectors all the same, for the first one begins with such a vector."""
    unit = min(units, default=16)
    if unit == 2:
        tiles = products * cdiv(M, 128) * cdiv(N, 128)
        step = STEP_SHIFTED + TILE_SHIFTED * tiles if shifted else STEP_OF_HALVES * cdiv(tiles, 264)
        return step * cdiv(K, 64)
    return 2 * products * cdiv(M, 64) * cdiv(N, 64) * 64**2 * K * SAVED.get(unit, 0.0)


# Operations per microsecond of register_tiled and, on whole tiles, of bf16x6; microseconds of the launches of that. H200,
# us, by both: 768^3 35.8 and 29.0, 512^3 17.6 and 26.3, 128 x 4096 x 4096 114.0 and 102.4, 2802 x 333 x 128 20.1 and 27.1.
PLAIN_FP32, BF16X6, SPLITTING = 48e6, 105e6, 6.0
LONGEST = 2**22  # K, of which sums of planes, at most 2^104, stay below the largest fp32
LARGEST = 2**31 - 512  # of an int, rounded up to whole tiles
INDICES = tuple(AtMost(axis, LARGEST) for axis in "MNK")


def _on_tensor_cores(names: FactorNames) -> tuple[Condition, ...]:
    return Tf32Allowed(names.left), Multiplies(names.left)


def _on_hopper(names: FactorNames) -> tuple[Condition, ...]:
    """Lines that TMA cannot read are copied first."""
    return (
        Tf32Allowed(names.left), Tf32Layout(names.k_axes, names.right, names.rows), Capability((9, 0), below=(10, 0)),
        RepaysCopies(names.left, names.right, dict(names.k_axes).get(names.right, 1), names.rows),
    )  # fmt: skip


def _in_planes(names: FactorNames) -> tuple[Condition, ...]:
    return Dtypes(names.left, torch.float32), Capability((9, 0), below=(10, 0)), AtMost("K", LONGEST)


def _repays_planes(names: FactorNames) -> tuple[Condition, ...]:
    return (RepaysPlanes(names.rows),)


RUNGS = {
    "naive": MatmulRung(naive, "one thread per element", "fp32_sequential"),
    "tiled": MatmulRung(tiled, "tiles of both operands in shared memory", "fp32_sequential"),
    "register_tiled": MatmulRung(register_tiled, "4x4 to 8x16 elements per thread, blocks share K", "fp32_sequential"),
    "bf16x6": MatmulRung(bf16x6, "six products of bf16 planes", "fp32_sequential", _in_planes, _repays_planes),
    "tensor_cores": MatmulRung(tensor_cores, "mma.sync behind cp.async", "mma", _on_tensor_cores),
    "wgmma": MatmulRung(wgmma, "TMA feeds warpgroup products in a persistent grid", "mma", _on_hopper),
}


def _variant(rung: MatmulRung) -> Implementation:
    def matmul(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
        return rung.fn(*readable(a, b), precision, PLAIN)

    names = FactorNames("a", "b", (("a", 1), ("b", 0)), rows="rows")
    conditions = (*rung.conditions(names), AtMost("rows", LARGEST), AtMost("batches", LARGEST))
    layouts = {"a": "matrix", "b": "matrix"}
    return Implementation(matmul, rung.idea, conditions, layouts, rung.arithmetic, pays=rung.pays(names))


VARIANTS = {name: _variant(rung) for name, rung in RUNGS.items()}
