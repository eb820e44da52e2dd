"""wgmma: matrix products of four warps with operands in shared memory; one batched product for all warpgroups.

Results are there at once, operands are read at the instruction; in full mode they are read again at `wgmma.wait_group`,
and an operand that changed in between, a product that was never waited for, or a missing first fence is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.arithmetic.fused_dot import FP8, FULL, fused_dot
from kernelmux.emulator.arithmetic.matrix_elements import STORAGE, from_float, to_float
from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action, operation, registers
from kernelmux.emulator.ops.matrix_descriptor import START, SharedOperand, require_units_visible
from kernelmux.emulator.ops.pending_at_exit import never_waited_for
from kernelmux.emulator.ops.tensor_core import (
    F32,
    FLOAT8,
    S32,
    U32,
    add_integers,
    columns,
    fragment_a,
    integer_product,
    shape_of,
)
from kernelmux.emulator.ptx.parser import Immediate, Instruction, Vector

Array = NDArray[Any]


@operation("wgmma.mma_async")
def mma_async(ins: Instruction) -> Action:
    """`wgmma.mma_async.sync.aligned.m64n*k*.d.a.b d, a, b, scale_d{, scale_a, scale_b{, transpose_a}, transpose_b}`."""
    _, n, k = shape_of(ins)
    type_d, type_a, type_b = [x for x in ins.modifiers if x != "satfinite"][-3:]
    if type_a not in STORAGE or type_b not in STORAGE or ins.has("sp"):
        raise Unsupported(f"{ins.opcode}: dense products of {', '.join(STORAGE)} are emulated")
    d, a, b, scale_d, *immediates = ins.operands
    from_registers = isinstance(a, Vector)
    sign_a, sign_b, *transposes = [_integer(x, ins) for x in immediates] or [1, 1]
    transpose_b = bool(transposes[-1]) if transposes else False
    transpose_a = bool(transposes[0]) if len(transposes) == 2 else False
    scalar = {"f32": F32, "s32": S32, "f16": U32}[type_d]
    outputs = registers(d, scalar)
    left_slots = registers(a, U32) if from_registers else ((a, np.uint64),)
    count = len(left_slots)

    def run(group: Any, *values: Any) -> tuple[Array, ...]:
        reader = Reader(ins, group)
        if from_registers:
            left = fragment_a(columns(group, values[:count]), type_a).reshape(-1, 64, k)
        else:
            left = to_float(operand(group, values[0], 64, k, type_a, transpose_a, reader), type_a)
        right = to_float(operand(group, values[count], n, k, type_b, transpose_b, reader), type_b)
        reader.close()
        left = left if sign_a * sign_b == 1 else -left
        right = _by_column(right).swapaxes(1, 2)
        sums = _kept(group, values[count + 2 :], values[count + 1])
        if type_d == "s32":
            total = _registers(integer_product(left, right))
            return tuple(add_integers(r, v, ins.has("satfinite")) for r, v in zip(total, sums, strict=True))
        rule = FP8 if type_a in FLOAT8 else FULL
        if type_d == "f32":
            c = _matrix(np.stack(sums))
            return tuple(_registers(fused_dot(left, right, c, (type_a, type_b), rule)))
        return _from_halves(fused_dot(left, right, _halves(sums), (type_a, type_b), rule, half=True))

    slots = (*left_slots, (b, np.uint64), (scale_d, np.bool_), *outputs)
    return Action(run, inputs=slots, outputs=outputs, scope="warpgroup")


def _integer(operand_: Any, ins: Instruction) -> int:
    if not isinstance(operand_, Immediate):
        raise Unsupported(f"{ins.opcode}: scale and transpose operands are immediates")
    return operand_.integer


# --- the accumulator ------------------------------------------------------------------------------------------


def _by_column(right: Array) -> Array:
    """B `[.., N, K]` with its N ordered [column, tile, t], so that the four values of t end up side by side."""
    groups, n, k = right.shape
    return right.reshape(groups, n // 8, 4, 2, k).transpose(0, 3, 1, 2, 4).reshape(groups, n, k)


def _registers(total: Array) -> Array:
    """`[warpgroups, 64, N in the order of _by_column]` as `[registers, lanes]`.

    Register [tile, half, column] of lane (g, t): row 16 * warp + g + 8 * half, column 8 * tile + 2 * t + column.
    """
    n = total.shape[2]
    quads = np.ascontiguousarray(total, F32).view(np.complex128)  # four values of t in one, to move them as one
    split = quads.reshape(-1, 4, 2, 8, 2, n // 8)  # [.., warp, half, g, column, tile]
    return split.transpose(5, 2, 4, 0, 1, 3).reshape(n // 2, -1).view(F32)


def _matrix(stacked: Array) -> Array:
    """The inverse of `_registers`."""
    n = 2 * len(stacked)
    quads = np.ascontiguousarray(stacked).view(np.complex128).reshape(n // 8, 2, 2, -1, 4, 8)
    split = quads.transpose(3, 4, 1, 5, 2, 0)  # [.., warp, half, g, column, tile]
    return np.ascontiguousarray(split).reshape(-1, 64, n // 4).view(F32)


def _kept(group: Any, values: tuple[Any, ...], keep: Any) -> list[Array]:
    """The accumulator registers of every lane, zeros where not `keep` (scale-d)."""
    if np.all(keep):
        return [group.full(v) for v in values]
    return [np.where(keep, group.full(v), v.dtype.type(0)) for v in values]


def _halves(sums: list[Array]) -> Array:
    """Registers of fp16 pairs, two columns to each, as `_matrix` has them."""
    pairs = to_float(np.stack(sums)[..., None].view(np.uint16), "f16")  # [registers, lanes, column]
    return _matrix(pairs.swapaxes(1, 2).reshape(2 * len(sums), -1))


def _from_halves(total: Array) -> tuple[Array, ...]:
    """The inverse of `_halves`, of fp16 results."""
    split = _registers(total).reshape(total.shape[2] // 4, 2, -1).swapaxes(1, 2)  # [registers, lanes, column]
    return tuple(np.ascontiguousarray(from_float(split, "f16")).view(U32)[..., 0])


# --- operands in shared memory --------------------------------------------------------------------------------


def operand(group: Any, descriptor: Any, rows: int, k: int, kind: str, transposed: bool, reader: Reader) -> Array:
    """Bits `[warpgroups, rows, K]` of the matrix that each warpgroup's descriptor stands for."""
    shape = SharedOperand("wgmma", rows, k, kind, transposed)
    if transposed and shape.size != 2:
        group.fail("asynchronous", "wgmma transposes operands of 16-bit elements only")
    of_group = group.full(descriptor).reshape(-1, 128)[:, 0].astype(np.uint64)
    blocks = group.block.reshape(-1, 128)[:, 0]
    layouts = of_group & ~np.uint64(START)
    if (layouts == layouts[0]).all():
        return _gather(group, shape, of_group, blocks, reader, 0)
    parts = [_gather(group, shape, of_group[i : i + 1], blocks[i : i + 1], reader, i) for i in range(len(of_group))]
    return np.concatenate(parts)


def _gather(group: Any, shape: SharedOperand, descriptors: Array, blocks: Array, reader: Reader, first: int) -> Array:
    """Operands whose descriptors differ only in their start; `first` is the number of the first warpgroup."""
    units = shape.units(group, descriptors, 128 * (first + np.arange(len(descriptors))))
    return shape.matrices(reader.read(blocks, units, first))


# --- what is in flight ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Read:
    """16-byte units of shared memory that products of some warpgroups read: their blocks, places and contents."""

    blocks: Array  # [warpgroups]
    units: Array  # [warpgroups, .., ..]
    contents: Array

    def changed(self, now: Array, rows: list[int]) -> Array:
        """For each warpgroup at `rows` whether its units hold something else now; `now` is all shared memory."""
        units = self.units[rows].reshape(len(rows), -1)
        current = now[self.blocks[rows][:, None], units].view(np.uint64)
        before = self.contents[rows].reshape(len(rows), -1).view(np.uint64)
        different: Array = (current != before).any(axis=1)
        return different


@dataclass(frozen=True)
class WgmmaOperand:
    """An operand of one warpgroup's wgmma: the instruction, what was read, which row of that is the warpgroup's."""

    ins: Instruction
    read: Read
    row: int


class Reader:
    """Reads the operands of one wgmma; in full mode keeps what it read, to find later changes."""

    def __init__(self, ins: Instruction, group: Any) -> None:
        self.ins, self.group = ins, group
        self.full = group.run.checks == "full"
        self.reads: list[tuple[int, Read]] = []  # with the number of the first warpgroup

    def read(self, blocks: Array, units: Array, first: int) -> Array:
        """Contents of 16-byte units `[warpgroups, .., ..]` of shared memory; `first`: number of the first warpgroup."""
        contents: Array = self.group.run.shared.bytes.view(np.complex128)[blocks[:, None, None], units >> 4]
        if self.full:
            positions = 128 * (first + np.arange(len(blocks)))
            require_units_visible(self.group, blocks, units, "wgmma", positions)
            self.reads.append((first, Read(blocks, units >> 4, contents)))
        return contents

    def close(self) -> None:
        """Add the product to the open group of its warpgroups."""
        for i, groups in enumerate(_groups_of(self.group) if self.full else ()):
            if not groups.fenced:
                self.group.fail("asynchronous", "wgmma.mma_async without a wgmma.fence before it", [128 * i])
            for first, read in self.reads:
                if first <= i < first + len(read.blocks):
                    groups.open.append(WgmmaOperand(self.ins, read, i - first))


@dataclass
class ProductGroups:
    """Of one warpgroup: whether it fenced, its uncommitted products, and its committed groups, oldest first."""

    fenced: bool = False
    open: list[WgmmaOperand] = field(default_factory=list)
    committed: list[list[WgmmaOperand]] = field(default_factory=list)


def _groups_of(group: Any) -> list[ProductGroups]:
    """The product groups of the group's warpgroups, in order; the first lane of a warpgroup is its key."""
    by_warpgroup: dict[int, ProductGroups] = group.run.kept("wgmma", dict, partial(_check_landed, group.run))
    first = (group.index - group.thread % 128).reshape(-1, 128)[:, 0]
    return [by_warpgroup.setdefault(int(lane), ProductGroups()) for lane in first]


def _check_landed(run: Any, by_warpgroup: dict[int, ProductGroups]) -> None:
    for lane, groups in by_warpgroup.items():
        for product_ in (*groups.open, *(p for products in groups.committed for p in products)):
            raise never_waited_for(run, product_.ins, lane, "this product (wgmma.commit_group, wait_group)")


def _tracked(ins: Instruction, change: Any) -> Action:
    """An instruction that changes the product groups alone; nothing to do in fast mode."""

    def run(group: Any) -> None:
        if group.run.checks == "full":
            for i, groups in enumerate(_groups_of(group)):
                change(group, i, groups)

    return Action(run, scope="warpgroup")


@operation("wgmma.fence")
def fence(ins: Instruction) -> Action:
    """`wgmma.fence.sync.aligned`: registers written before are seen by the next wgmma."""

    def change(group: Any, i: int, groups: ProductGroups) -> None:
        groups.fenced = True

    return _tracked(ins, change)


@operation("wgmma.commit_group")
def commit_group(ins: Instruction) -> Action:
    """`wgmma.commit_group.sync.aligned`: products since the last commit become a group."""

    def change(group: Any, i: int, groups: ProductGroups) -> None:
        groups.committed.append(groups.open)
        groups.open = []

    return _tracked(ins, change)


@operation("wgmma.wait_group")
def wait_group(ins: Instruction) -> Action:
    """`wgmma.wait_group.sync.aligned N`: wait until at most N groups are in flight."""
    allowed = _integer(ins.operands[0], ins)

    def run(group: Any) -> None:
        if group.run.checks != "full":
            return
        landed: dict[int, Landed] = {}
        for i, groups in enumerate(_groups_of(group)):
            while len(groups.committed) > allowed:
                for product_ in groups.committed.pop(0):
                    landed.setdefault(id(product_.read), Landed(product_.read)).add(product_.row, i)
        for one in landed.values():
            one.require_unchanged(group)

    return Action(run, scope="warpgroup")


class Landed:
    """Products that end together and come from one instruction: rows of one read, and the warpgroups they belong to."""

    def __init__(self, read: Read) -> None:
        self.read, self.rows, self.warpgroups = read, list[int](), list[int]()

    def add(self, row: int, warpgroup: int) -> None:
        self.rows.append(row)
        self.warpgroups.append(warpgroup)

    def require_unchanged(self, group: Any) -> None:
        changed = self.read.changed(group.run.shared.bytes.view(np.complex128), self.rows)
        if changed.any():
            lane = 128 * self.warpgroups[int(changed.argmax())]
            group.fail("asynchronous", "an operand of wgmma was overwritten before wgmma.wait_group", [lane])
