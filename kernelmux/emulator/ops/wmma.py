"""Warp-level matrix instructions of `nvcuda::wmma`: wmma.load, wmma.store, wmma.mma.

The ISA leaves open which lane holds which element, so we choose: the elements of a matrix in row-major order, 1 / 32 to
a lane, packed into its registers; registers left over (fp16 fragments always have eight) repeat the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.arithmetic.matrix_elements import STORAGE, from_float, to_float
from kernelmux.emulator.errors import Unsupported
from kernelmux.emulator.ops import Action, address, not_emulated, operation, registers
from kernelmux.emulator.ops.mma import NARROW, multiplied, narrow_elements
from kernelmux.emulator.ops.tensor_core import INTEGERS, U32, add_integers, fused, integer_product, shape_of, unwrapped
from kernelmux.emulator.ptx.parser import Instruction

Array = NDArray[Any]
CHUNK = 16  # bytes a lane moves at a time: rows are aligned to that
SPECIAL = ("f64", *NARROW)
ROUNDING = ("rn", "rz", "rm", "rp")
WORDS = {"f64": np.uint64}  # what registers hold; U32 for other elements


def _element(kind: str) -> type[np.unsignedinteger[Any]]:
    if kind == "f64":
        return np.uint64
    if kind in NARROW:
        return np.uint8  # a whole byte of elements is the smallest unit; B is kept transposed
    if kind != "s32" and kind not in STORAGE:
        raise Unsupported(f"wmma with elements {kind}; emulated: s32, f64, {', '.join((*NARROW, *STORAGE))}")
    return U32 if kind == "s32" else STORAGE[kind]


def _tile(ins: Instruction, part: str, kind: str) -> tuple[int, int]:
    """Rows and columns of matrix a, b, c or d, in units of storage."""
    m, n, k = shape_of(ins)
    if kind in NARROW:
        return (m if part == "a" else n), k * NARROW[kind] // 8
    return {"a": (m, k), "b": (k, n)}.get(part, (m, n))


def _pack(matrix: Array, count: int) -> tuple[Array, ...]:
    """Bits of matrices `[warps, rows, columns]` as `count` registers of every lane."""
    word = np.uint64 if matrix.itemsize == 8 else U32
    lanes = np.ascontiguousarray(matrix).reshape(len(matrix), 32, -1).view(word)
    repeated = lanes[:, :, np.arange(count) % lanes.shape[2]]
    return tuple(np.ascontiguousarray(repeated.transpose(2, 0, 1)).reshape(count, -1))


def _unpack(group: Any, values: tuple[Any, ...], tile: tuple[int, int], storage: Any) -> Array:
    """The inverse of `_pack`: bits `[warps, rows, columns]`."""
    size = np.dtype(storage).itemsize
    used = tile[0] * tile[1] * size // (32 * max(4, size))
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


def _memory_shape(ins: Instruction, part: str, kind: str) -> tuple[int, int, bool]:
    """Lines, units of storage in a line, and whether lines are columns that have to become rows."""
    rows, cols = _tile(ins, part, kind)
    by_column = ins.has("col")
    if kind in NARROW:
        if by_column != (part == "b"):
            raise Unsupported(f"{ins.opcode}: A is row-major and B column-major")
        return rows, cols, False
    return (cols, rows, True) if by_column else (rows, cols, False)


def _in_storage(stride: Any, kind: str) -> Any:
    """A distance in elements, in units of storage."""
    return stride * NARROW[kind] // 8 if kind in NARROW else stride


@operation("wmma.load")
def load(ins: Instruction) -> Action:
    """`wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {r, ..}, [p], stride`."""
    part, kind = ins.modifiers[1], ins.modifiers[-1]
    destination, pointer, *given = ins.operands
    lines, length, by_column = _memory_shape(ins, part, kind)
    storage = _element(kind)
    per_chunk = CHUNK // np.dtype(storage).itemsize
    outputs = registers(destination, WORDS.get(kind, U32))

    def run(group: Any, base: Array, *given: Any) -> Any:
        _check_alignment(group, base)
        stride = _in_storage(given[0], kind) if given else length
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
    lines, length, by_column = _memory_shape(ins, "d", kind)
    storage = _element(kind)
    per_chunk = CHUNK // np.dtype(storage).itemsize
    values = registers(source, WORDS.get(kind, U32))

    def run(group: Any, base: Array, *rest: Any) -> None:
        _check_alignment(group, base)
        matrix = _unpack(group, rest[: len(values)], _tile(ins, "d", kind), storage)
        lines_ = (matrix.swapaxes(1, 2) if by_column else matrix).reshape(len(matrix), -1)
        padded = np.pad(lines_, ((0, 0), (0, -lines_.shape[1] % (32 * per_chunk))))
        flat = padded.reshape(len(matrix), -1, 32, per_chunk)
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
    words = ins.modifiers[ins.modifiers.index(f"m{m}n{n}k{k}") + 1 :]
    kinds = [x for x in words if x != "satfinite" and x not in ROUNDING]
    if len(kinds) == 2:
        return kinds[0], "f16", "f16", kinds[1]
    if len(kinds) != 4 or set(words) & set(ROUNDING[1:]):
        raise not_emulated(ins)
    return kinds[0], kinds[1], kinds[2], kinds[3]


@operation("wmma.mma")
def mma(ins: Instruction) -> Action:
    """`wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 d, a, b, c`: D = A * B + C of one warp."""
    types = _types(ins)
    type_d, type_a, _, type_c = types
    d, *operands = ins.operands
    parts = [registers(o, WORDS.get(kind, U32)) for o, kind in zip(operands, types[1:], strict=True)]
    ends = np.cumsum([len(part) for part in parts])
    outputs = registers(d, WORDS.get(type_d, U32))

    def run(group: Any, *values: Any) -> tuple[Array, ...]:
        pieces = (values[: ends[0]], values[ends[0] : ends[1]], values[ends[1] :])
        a, b, c = (
            _unpack(group, piece, _tile(ins, part, kind), _element(kind))
            for piece, part, kind in zip(pieces, "abc", types[1:], strict=True)
        )
        if type_a in SPECIAL:
            return _pack(_special(ins, a, b, c, type_a, types[2]), len(outputs))
        left, right = to_float(a, type_a), to_float(b, types[2])
        if type_a in INTEGERS:
            total = add_integers(integer_product(left, right), c.view(np.int32), ins.has("satfinite"))
            return _pack(total.view(U32), len(outputs))
        total = fused(left, right, to_float(c, type_c), (type_a, types[2]), half=type_d == "f16")
        return _pack(from_float(total, type_d), len(outputs))

    return Action(run, inputs=sum(parts, ()), outputs=outputs, scope="warp")


def _special(ins: Instruction, a: Array, b: Array, c: Array, type_a: str, type_b: str) -> Array:
    """D as bits, of float64 or of elements of less than a byte, whose B is `[.., N, K]`."""
    if type_a == "f64":
        total = multiplied(a.view(np.float64), b.view(np.float64), type_a, "") + c.view(np.float64)
        return total.view(np.uint64)
    bits = next((m for m in ins.modifiers if m in ("xor", "and")), "")
    left, right = (narrow_elements(np.ascontiguousarray(x).view(U32), k) for x, k in ((a, type_a), (b, type_b)))
    product = multiplied(left, right.swapaxes(1, 2), type_a, bits)
    return add_integers(product, c.view(np.int32), ins.has("satfinite")).view(U32)
