"""Warp-level matrix instructions of `nvcuda::wmma`: wmma.load, wmma.store, wmma.mma.

The ISA leaves open which lane holds which element, so we choose: the elements of a matrix in row-major order, 1 / 32 to
a lane, packed into its registers; registers left over (fp16 fragments always have eight) repeat the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.elements import STORAGE, from_float, to_float
from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action, address, operation, registers
from kernelmux.emulator.ops.tensor_core import INTEGERS, U32, add_integers, product, shape_of, unwrapped
from kernelmux.emulator.parser import Instruction

Array = NDArray[Any]
CHUNK = 16  # bytes a lane moves at a time: rows are aligned to that


def _element(kind: str) -> type[np.unsignedinteger[Any]]:
    if kind != "s32" and kind not in STORAGE:
        raise Unsupported(f"wmma with elements {kind}; emulated: s32, {', '.join(STORAGE)}")
    return U32 if kind == "s32" else STORAGE[kind]


def _tile(ins: Instruction, part: str) -> tuple[int, int]:
    """Rows and columns of matrix a, b, c or d."""
    m, n, k = shape_of(ins)
    return {"a": (m, k), "b": (k, n)}.get(part, (m, n))


def _pack(matrix: Array, count: int) -> tuple[Array, ...]:
    """Bits of matrices `[warps, rows, columns]` as `count` registers of every lane."""
    lanes = np.ascontiguousarray(matrix).reshape(len(matrix), 32, -1).view(U32)
    repeated = lanes[:, :, np.arange(count) % lanes.shape[2]]
    return tuple(np.ascontiguousarray(repeated.transpose(2, 0, 1)).reshape(count, -1))


def _unpack(group: Any, values: tuple[Any, ...], tile: tuple[int, int], storage: Any) -> Array:
    """The inverse of `_pack`: bits `[warps, rows, columns]`."""
    used = tile[0] * tile[1] * np.dtype(storage).itemsize // (32 * 4)
    words: Array = np.stack([group.full(v) for v in values[:used]]).reshape(used, -1, 32).transpose(1, 2, 0)
    bits: Array = np.ascontiguousarray(words).view(storage)
    return bits.reshape(-1, *tile)


# --- load and store -------------------------------------------------------------------------------------------


def _addresses(group: Any, base: Array, stride: Any, lines: int, length: int, size: int) -> Any:
    """Where each lane finds its 16-byte chunks of `lines` lines of `length` elements: (address, mask), one per turn.

    `stride` is the distance between lines, in elements of `size` bytes.
    """
    per_line = length * size // CHUNK
    for turn in range(-(-lines * per_line // 32)):
        chunk = turn * 32 + group.lane
        line, position = np.divmod(chunk, per_line)
        yield group.full(base) + (line * group.full(stride).astype(np.int64)) * size + position * CHUNK, line < lines


def _memory_shape(ins: Instruction, part: str) -> tuple[int, int, bool]:
    """Lines, elements of a line, and whether lines are columns."""
    rows, cols = _tile(ins, part)
    by_column = ins.has("col")
    return (cols, rows, True) if by_column else (rows, cols, False)


@operation("wmma.load")
def load(ins: Instruction) -> Action:
    """`wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {r, ..}, [p], stride`."""
    part, kind = ins.modifiers[1], ins.modifiers[-1]
    destination, pointer, *given = ins.operands
    lines, length, by_column = _memory_shape(ins, part)
    storage = _element(kind)
    per_chunk = CHUNK // np.dtype(storage).itemsize
    outputs = registers(destination, U32)

    def run(group: Any, base: Array, stride: Any = length) -> Any:
        _check_alignment(group, base)
        turns = [
            group.load(ins.space, where, storage, count=per_chunk, mask=mask).reshape(-1, 32 * per_chunk)
            for where, mask in _addresses(group, base, stride, lines, length, np.dtype(storage).itemsize)
        ]
        matrix = np.concatenate(turns, axis=1)[:, : lines * length].reshape(-1, lines, length)
        return unwrapped(_pack(matrix.swapaxes(1, 2) if by_column else matrix, len(outputs)))

    strides = ((given[0], np.int32),) if given else ()
    return Action(run, inputs=(address(pointer), *strides), outputs=outputs, scope="warp")


@operation("wmma.store")
def store(ins: Instruction) -> Action:
    """`wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [p], {r, ..}, stride`."""
    kind = ins.modifiers[-1]
    pointer, source, *given = ins.operands
    lines, length, by_column = _memory_shape(ins, "d")
    storage = _element(kind)
    per_chunk = CHUNK // np.dtype(storage).itemsize
    values = registers(source, U32)

    def run(group: Any, base: Array, *rest: Any) -> None:
        _check_alignment(group, base)
        matrix = _unpack(group, rest[: len(values)], _tile(ins, "d"), storage)
        flat = (matrix.swapaxes(1, 2) if by_column else matrix).reshape(len(matrix), -1, 32, per_chunk)
        stride = rest[len(values)] if given else length
        for turn, (where, mask) in enumerate(
            _addresses(group, base, stride, lines, length, np.dtype(storage).itemsize)
        ):
            group.store(ins.space, where, np.ascontiguousarray(flat[:, turn]).reshape(-1, per_chunk), mask=mask)

    strides = ((given[0], np.int32),) if given else ()
    return Action(run, inputs=(address(pointer), *values, *strides), scope="warp")


def _check_alignment(group: Any, base: Array) -> None:
    wrong = group.full(base) % 32 != 0
    if wrong.any():
        group.fail("misaligned", "wmma pointer is not aligned to 32 bytes", wrong)


# --- mma ------------------------------------------------------------------------------------------------------


def _types(ins: Instruction) -> tuple[str, str, str, str]:
    """Element types of D, A, B, C; with fp16 multiplicands only D and C are written."""
    m, n, k = shape_of(ins)
    kinds = [x for x in ins.modifiers[ins.modifiers.index(f"m{m}n{n}k{k}") + 1 :] if x != "satfinite"]
    if len(kinds) == 2:
        return kinds[0], "f16", "f16", kinds[1]
    if len(kinds) != 4:
        raise Unsupported(ins.opcode)
    return kinds[0], kinds[1], kinds[2], kinds[3]


@operation("wmma.mma")
def mma(ins: Instruction) -> Action:
    """`wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 d, a, b, c`: D = A * B + C of one warp."""
    type_d, type_a, type_b, type_c = _types(ins)
    d, a, b, c = ins.operands
    parts = (registers(a, U32), registers(b, U32), registers(c, U32))
    ends = np.cumsum([len(part) for part in parts])

    def run(group: Any, *values: Any) -> tuple[Array, ...]:
        left = to_float(_unpack(group, values[: ends[0]], _tile(ins, "a"), _element(type_a)), type_a)
        right = to_float(_unpack(group, values[ends[0] : ends[1]], _tile(ins, "b"), _element(type_b)), type_b)
        bits = _unpack(group, values[ends[1] :], _tile(ins, "c"), _element(type_c))
        total = product(left, right, type_a)
        if type_a in INTEGERS:
            return _pack(add_integers(total, bits.view(np.int32), ins.has("satfinite")).view(U32), len(outputs))
        return _pack(from_float(total + to_float(bits, type_c), type_d), len(outputs))

    outputs = registers(d, U32)
    return Action(run, inputs=sum(parts, ()), outputs=outputs, scope="warp")
