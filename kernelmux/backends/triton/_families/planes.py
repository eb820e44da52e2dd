"""fp32 numbers as three bf16 numbers each, for products of them on tensor cores ("bf16x6").

x * 2^24 = x1 + x2 + x3 with x1 = bf16(x * 2^24), x2 = bf16(x * 2^24 - x1) and x3 = what is left, which has 8 bits at most:
nothing is lost. The planes of a line stand side by side, each `apart(length)` elements wide, with zeros at its end. Of

    a b = a3 b1 + a1 b3 + a2 b2 + a2 b1 + a1 b2 + a1 b1, divided by 2^48,

what is left out is below 2^-25 |a| |b|. The scale keeps all bits of numbers down to 2^-134. A number that is smaller, above
2^28 or not finite cannot be computed so: each program says in a word of its own whether it has found one.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from kernelmux.backends.triton._launch.launch import Config, Ints, Launch, cdiv, plan, processors
from kernelmux.registry.util.batch_strides import merged

LINE = 64  # elements of a plane, of which its width is a multiple
SCALE_BACK = tl.constexpr(2.0**-48)  # of a product of two scaled numbers
TILE, WIDE, PROGRAMS = 4096, 256, 16  # elements at a time, of a line; programs of a multiprocessor
_LEAST, _MOST = tl.constexpr(0x8000), tl.constexpr(0x4D800000)  # bits of 2^-134 and of 2^28
_AXES = 3


@triton.jit
def parts_of(x):
    """The three planes of fp32 numbers."""
    scaled = x * 16777216.0
    first = scaled.to(tl.bfloat16)
    rest = scaled - first.to(tl.float32)
    second = rest.to(tl.bfloat16)
    return first, second, (rest - second.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def beyond(x):
    """1 for numbers that planes do not hold, else 0."""
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return ((bits > _MOST) | ((bits < _LEAST) & (bits != 0))).to(tl.int32)


@triton.jit
def found_one(flags_ptr, words):
    """Whether any of so many words says that a number was found."""
    at = tl.arange(0, 1024)
    found = tl.zeros([1024], tl.int32)
    for first in range(0, words, 1024):
        found |= tl.load(flags_ptr + first + at, mask=first + at < words, other=0)
    return tl.max(found, 0) != 0


@triton.jit
def _split(
    planes_ptr, flag_ptr, program, programs, x_ptr, lines, length, apart, middle, inner, step_outer, step_middle,
    step_inner, UNIT: tl.constexpr, AXES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One of so many programs: lines (i, j, k) of x, `middle` and `inner` of the last two axes, to their planes; AXES: so
    many axes. UNIT: what the length and the steps from line to line are counted in."""
    length *= UNIT
    pieces = tl.cdiv(apart, BLOCK)
    blocks = tl.cdiv(lines, ROWS) * pieces
    found = tl.zeros([ROWS, BLOCK], tl.int32)
    for block in range(program, blocks, programs):
        line = (block // pieces) * ROWS + tl.arange(0, ROWS)
        at = (block % pieces) * BLOCK + tl.arange(0, BLOCK)
        first = (line % inner).to(tl.int64) * step_inner
        if AXES > 1:
            first += ((line // inner) % middle).to(tl.int64) * step_middle
        if AXES > 2:
            first += (line // inner // middle).to(tl.int64) * step_outer
        mask = (line < lines)[:, None]
        # [ROWS, BLOCK]
        x = tl.load(x_ptr + (first[:, None] * UNIT + at[None, :]), mask=mask & (at < length)[None, :], other=0.0)
        found |= beyond(x)
        one, two, three = parts_of(x)
        out = planes_ptr + (line.to(tl.int64)[:, None] * (3 * apart) + at[None, :])
        mask &= (at < apart)[None, :]
        tl.store(out, one, mask=mask)
        tl.store(out + apart, two, mask=mask)
        tl.store(out + 2 * apart, three, mask=mask)
    tl.store(flag_ptr, tl.max(tl.max(found, 1), 0))


@triton.jit(do_not_specialize=["of_a", "a_lines", "a_middle", "a_inner", "b_lines", "b_middle", "b_inner"])
def split_kernel(
    a_planes_ptr, b_planes_ptr, flags_ptr, a_ptr, b_ptr, of_a,
    a_lines, a_length, a_apart, a_middle, a_inner, a_step_outer, a_step_middle, a_step_inner,
    b_lines, b_length, b_apart, b_middle, b_inner, b_step_outer, b_step_middle, b_step_inner,
    A_UNIT: tl.constexpr, A_AXES: tl.constexpr, A_ROWS: tl.constexpr, A_BLOCK: tl.constexpr,
    B_UNIT: tl.constexpr, B_AXES: tl.constexpr, B_ROWS: tl.constexpr, B_BLOCK: tl.constexpr,
):  # fmt: skip
    """Two operands. of_a: programs of the first."""
    cuda.gdc_launch_dependents()
    program = tl.program_id(0)
    flag_ptr = flags_ptr + program
    if program < of_a:
        _split(
            a_planes_ptr, flag_ptr, program, of_a, a_ptr, a_lines, a_length, a_apart, a_middle, a_inner, a_step_outer,
            a_step_middle, a_step_inner, A_UNIT, A_AXES, A_ROWS, A_BLOCK,
        )  # fmt: skip
    else:
        _split(
            b_planes_ptr, flag_ptr, program - of_a, tl.num_programs(0) - of_a, b_ptr, b_lines, b_length, b_apart, b_middle,
            b_inner, b_step_outer, b_step_middle, b_step_inner, B_UNIT, B_AXES, B_ROWS, B_BLOCK,
        )  # fmt: skip


def apart(length: int) -> int:
    """The width of a plane: from one to the next of a line."""
    return max(cdiv(length, LINE), 1) * LINE


def split(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The planes, bf16 [..., R, 3 * apart(L)], of fp32 operands [..., R, L], and words that are all 0 if they hold these.

    Operands have L contiguous, up to three axes before it that do not merge, and elements.
    """
    launch, count = _plan(a.get_device(), (a.shape, b.shape), (a.stride(), b.stride()))
    flags = a.new_empty(count, dtype=torch.int32)
    planes = [x.new_empty((*x.shape[:-1], 3 * apart(x.shape[-1])), dtype=torch.bfloat16) for x in (a, b)]
    launch(*planes, flags, a, b)
    return planes[0], planes[1], flags


def words(device: int, shapes: tuple[Ints, Ints], strides: tuple[Ints, Ints]) -> int:
    """How many words `split` writes of such operands."""
    return _plan(device, shapes, strides)[1]


class _Lines(NamedTuple):
    """The lines of an operand as the kernel takes them, its constexprs, and how many blocks there are."""

    numbers: Ints
    meta: Config
    blocks: int


@plan
def _plan(device: int, shapes: tuple[Ints, Ints], strides: tuple[Ints, Ints]) -> tuple[Launch, int]:
    """The launch, and how many programs it has, each of which writes a word."""
    a, b = (_lines(*x) for x in zip(shapes, strides, strict=True))
    blocks = a.blocks + b.blocks
    programs = min(blocks, PROGRAMS * processors(device))
    of_a = min(max(programs * a.blocks // blocks, 1), programs - 1)
    meta = {f"{of}_{name}": value for of, x in (("A", a), ("B", b)) for name, value in x.meta.items()}
    return Launch(split_kernel, (programs,), of_a, *a.numbers, *b.numbers, **meta, num_warps=4), programs


def _lines(shape: Ints, strides: Ints) -> _Lines:
    axes = merged(zip(shape[:-1], strides[:-1], strict=True)) or [(1, 0)]
    if len(axes) > _AXES or strides[-1] != 1:
        raise ValueError(f"planes: expected lines that three strides walk, got {shape} with strides {strides}")
    (_, outer), (middle, of_middle), (inner, of_inner) = ((1, 0), (1, 0), *axes)[-_AXES:]
    lines, length = 1, shape[-1]
    for n, _ in axes:
        lines *= n
    unit = gcd(4, length, outer, of_middle, of_inner)
    block = min(WIDE, triton.next_power_of_2(apart(length)))
    rows = min(TILE // block, triton.next_power_of_2(lines))
    steps = (x // unit for x in (outer, of_middle, of_inner))
    meta = {"UNIT": unit, "AXES": len(axes), "ROWS": rows, "BLOCK": block}
    numbers = (lines, length // unit, apart(length), middle, inner, *steps)
    return _Lines(numbers, meta, cdiv(lines, rows) * cdiv(apart(length), block))
