"""Numbers of fp32 as the sum of three of bf16, of which tensor cores make products: q, k, v and grad_out of attention.

What six products of those leave out is below 2^-24 of a product. Each tensor becomes three planes, [3 B H M pitch].
bf16 has the exponents of fp32, so numbers are neither scaled nor looked at: those near the largest of fp32 begin with the
largest of bf16, and those below 2^-110 lose what is below 2^-133, the least number of bf16; the specs let kernels flush
faint numbers. Of scores and values that are not finite they ask nothing, as sums of those depend on the tiling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.experimental.gluon import language as gl

from kernelmux.backends.triton._launch.launch import Ints, Launch, Map, cdiv, plan
from kernelmux.registry.spec.sliding_windows import mask_of, over_keys

T = torch.Tensor

# Operations per microsecond by planes; microseconds of the launches that split; bytes per microsecond, and bytes of which
# each number that is split takes so many; queries of a tile without planes. H200, us, 32/8 heads, 4096 keys, D = 128: 1
# query 1622.1 without planes, 16 queries 207.8 by them.
BY_PLANES, SPLITTING, MEMORY, SPLIT_BYTES, PLAIN_ROWS = 90e6, 12.0, 3.5e6, 10, 32
ROWS = 16  # of a program
WHOLE = 128  # columns of the first of two pieces, at most
LARGEST = tl.constexpr(3.3895313892515355e38)  # number of bf16


@dataclass(frozen=True)
class RepaysPlanesOfHeads:
    """Queries that see enough keys to repay what splits all of those.

    products: of each query and key that it sees. rate: operations per microsecond without tensor cores. of_queries: tensors
    with rows of queries that are split.
    """

    products: int
    rate: float
    of_queries: int
    text: str = "enough queries and keys to repay splitting them"

    def check(self, call: Any) -> str | None:
        """None, or that there are too few."""
        B, H, G, M, N, D = (call.axes[axis] for axis in "BHGMND")
        mask = mask_of(M, N, *(call.arguments[name] for name in ("causal", "window", "ahead")))
        rows = max(1, min(M, 64))
        work = 2 * self.products * B * H * D * rows * sum(over_keys(mask, M, N, rows, 1))
        split = SPLIT_BYTES * B * D * (self.of_queries * H * M + 2 * G * N)
        in_tiles = cdiv(M, PLAIN_ROWS) * PLAIN_ROWS / max(M, 1)
        if work * in_tiles / self.rate >= work / BY_PLANES + SPLITTING + split / MEMORY:
            return None
        return f"{B} x {H} x {M} queries that see up to {N} keys are too few to repay splitting them"


@triton.jit
def _split(planes_ptr, ptr, program, H, M, strides, D: tl.constexpr, PITCH: tl.constexpr, COLUMNS: tl.constexpr,
           ROWS: tl.constexpr, size):  # fmt: skip
    """Rows of one head; zeros beyond D. size: elements of a plane."""
    blocks = tl.cdiv(M, ROWS)
    line = (program // blocks).to(tl.int64)
    rows = program % blocks * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    at = ptr + line // H * strides[0] + line % H * strides[1] + rows.to(tl.int64)[:, None] * strides[2]
    x = tl.load(at + columns[None, :], mask=(rows < M)[:, None] & (columns < D)[None, :], other=0.0)
    # Numbers that bf16 would round to infinity begin with its largest.
    size_of_x = tl.abs(x)
    beyond = (size_of_x > LARGEST) & (size_of_x < float("inf"))
    large = tl.where(beyond, tl.where(x > 0, LARGEST, -LARGEST), x).to(tl.bfloat16)
    rest = x - large.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    small = (rest - middle.to(tl.float32)).to(tl.bfloat16)
    to = planes_ptr + (line * M + rows)[:, None] * PITCH + columns[None, :]
    there = (rows < M)[:, None] & (columns < PITCH)[None, :]
    tl.store(to, large, mask=there)
    tl.store(to + size, middle, mask=there)
    tl.store(to + 2 * size, small, mask=there)


@triton.jit
def attention_split_kernel(
    a_planes, b_planes, c_planes, a_ptr, b_ptr, c_ptr, a_heads, a_rows, b_heads, b_rows, a_strides, b_strides, c_strides,
    a_size, b_size, of_a, of_b, D: tl.constexpr, PITCH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The planes of three tensors, of which c has the shape of b. of_a, of_b: programs for each."""
    program = tl.program_id(0)
    if program < of_a:
        _split(a_planes, a_ptr, program, a_heads, a_rows, a_strides, D, PITCH, COLUMNS, ROWS, a_size)
    elif program < of_a + of_b:
        _split(b_planes, b_ptr, program - of_a, b_heads, b_rows, b_strides, D, PITCH, COLUMNS, ROWS, b_size)
    else:
        _split(c_planes, c_ptr, program - of_a - of_b, b_heads, b_rows, c_strides, D, PITCH, COLUMNS, ROWS, b_size)


def pieces(D: int) -> tuple[int, int]:
    """Widths of the two pieces that rows are cut into, of a power of two each; 0 where one is no wider than both."""
    whole = max(16, int(triton.next_power_of_2(D)))
    rest = max(16, int(triton.next_power_of_2(max(1, D - whole // 2))))
    return (whole // 2, rest) if whole > WHOLE or (whole > 16 and whole // 2 + rest < whole) else (whole, 0)


def pitch(D: int) -> int:
    """Columns of a plane: rows of whole 16 bytes."""
    return cdiv(D, 8) * 8


def planes_of(*tensors: T) -> list[T]:
    """Memory for the planes of each."""
    return [x.new_empty((3, *x.shape[:3], pitch(x.shape[3])), dtype=torch.bfloat16) for x in tensors]


@plan
def split_plan(device: int, shapes: tuple[Ints, Ints, Ints], strides: tuple[Ints, Ints, Ints]) -> Launch:
    """The launch that splits three tensors, of which the last two have one shape; called with all planes, then them."""
    (_, a_heads, a_rows, D), (_, b_heads, b_rows, _), _ = shapes
    lines = [shape[0] * shape[1] for shape in shapes]
    of_a, of_b, of_c = (cdiv(shape[2], ROWS) * line for shape, line in zip(shapes, lines, strict=True))
    return Launch(
        attention_split_kernel, (of_a + of_b + of_c,), a_heads, a_rows, b_heads, b_rows, *(s[:3] for s in strides),
        lines[0] * a_rows * pitch(D), lines[1] * b_rows * pitch(D), of_a, of_b, D=D, PITCH=pitch(D),
        COLUMNS=max(16, triton.next_power_of_2(D)), ROWS=ROWS, num_warps=4,
    )  # fmt: skip


def planes_map(lines: int, rows: int, D: int, block: int, width: int) -> Map:
    """How the copy engine sees planes: boxes of so many rows of a plane, and columns."""
    shape, box = (3, lines, rows, pitch(D)), [1, 1, block, width]
    strides: Ints = (lines * rows * pitch(D), rows * pitch(D), pitch(D), 1)
    return Map(shape, strides, box, gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16))
