"""Gradients of row operators with weights: one tensor like the rows, and sums down the columns of all rows.

`row_gradients.cuh` has the kernels. How rows are dealt to blocks depends on their number: the sums down the columns are
those of a call; a row's own gradient does not depend on the others.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from kernelmux.backends.cuda._families.elementwise import ACCESS_BYTES, common_width
from kernelmux.backends.cuda._families.reductions import unroll
from kernelmux.backends.cuda._families.rows import RowPlan, RowWork, columns_of_vectors, peeled, row_plan, row_width
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Kernel, Source, card, cdiv, ctype, next_power
from kernelmux.backends.cuda.reduce_sum._sums import sum_partial
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtLeast, AtMost, Condition, MostRows, SharedMemory
from kernelmux.registry.spec import Call
from kernelmux.registry.util.cards import Card, remembered

Sums = tuple[torch.Tensor, ...]
SUMS_LIMIT = 24576  # fp32 sums in the registers of a block, beside the weights
BYTES_LIMIT = 36864  # of a row: two of three inputs in shared memory
_STATE_FLOATS = 5  # the most that an operator's State has
# Up to so many rows, of so many columns at least, are in pieces even where a block could hold them. H200, bf16, us, and
# pipelined: rms_norm 17 x 9040 8.4 (9.8), 32 x 4096 8.0 (8.1), 128 x 8192 12.8 (12.0), 6 x 2767 8.3 (8.0); add_rms_norm
# 34 x 11205 10.6 (14.9), 5 x 15576 8.2 (12.0); layer_norm 8 x 8192 9.1 (12.5), 104 x 2783 16.7 (12.3).
FEW_ROWS, LONG_ROWS = 64, 4096
_PIECE, _MOST_PIECES, _PIECE_UNIT = 8192, 32, 64  # elements of a row for a block; pieces are whole units
_PIECE_BLOCK, _COLUMN_BLOCK, _WARP = 512, 128, 32
_NARROWEST, _MOST_SIDES = 4, 8  # bytes of an access and rows side by side of the second kernel
_ROW_CHUNK = 64  # rows per partial sum: 4 / 64 bytes of extra traffic per element
_MOST_CHUNKS = 65535  # blocks in grid.y
# Rows per block that stays, but for so many blocks first, each of which takes a row after the other. H200, rms_norm, us, by
# blocks of 8 rows and of fewer: 8 x 5504 in bf16 17.0 and 10.8, 64 x 4096 14.1 and 11.8, 256 x 4096 15.6 and 13.7, 4 x 7488
# in fp32 15.4 and 10.5; 600 x 4096 16.9 and 17.6.
_LEAST_ROWS, _FIRST_BLOCKS = 8, 64
_HELD, _LONG_HELD = 64, 48  # bytes of a row in a thread, and where that would take more than 512 threads
# Bytes of rows of which a thread has half as much, so that there are enough warps to hide what each waits for. As far as
# 512 threads hold them, these take the values from shared memory once. H200, rms_norm, bf16: 8192 x 5120 77 us (88 with
# 64 bytes), 16384 x 4096 113 (118), 4096 x 12288 97 (100; 110 if taken once), 16384 x 8192 214 (213); layer_norm 8192 x
# 5120 95 (102), 16384 x 4096 128 (131), 16384 x 8192 225 (228).
_MIDDLE = (8192, 24576)
# Elements of longer rows of which a block of 256 threads holds all, with up to 255 registers for a thread. H200, bf16:
# layer_norm, 8192 x 11008 166 us (191 by 352 threads, 258 in two passes), 4096 x 9216 88 (97 by 576 threads); rms_norm 149
# (153) and 72.5 (73). Of 8192 elements 223 (220).
_LARGE = (8193, 14336)
# Bytes of an access below which rows are peeled, and of rows that are not. H200, bf16: rms_norm, 8192 x 4097 78 us (134),
# 4096 x 11007 92 (146); layer_norm, 4096 x 11007 101 (177); add_rms_norm, 16384 x 2047 92 (115).
_NARROW, _SHORT = 8, 2048
# Bytes of rows of single 16-bit elements, of several side by side in a block, from which they are peeled too, by 8 bytes.
# H200, bf16, us, and not peeled: rms_norm 516222 x 65 69.7 (209.3), 170327 x 197 62.8 (156.0); layer_norm 130561 x 257 72.3
# (150.4).
_PEELED_SIDE = 128
_MOST_THREADS = 1024  # per multiprocessor, of 64 registers
_THREADS = 256  # per multiprocessor, in blocks of fewer; 64 bytes of each, two rows ahead, keep the memory busy
_STAGES = 3  # rows in the ring, where shared memory has room for them
_OTHER_SHARED = 2048  # bytes of a block beside the ring: its sums, and 1 KiB of the system


class RowsTogether(NamedTuple):
    """Of rows that fit a warp: bytes of a row in a thread, of all threads of a multiprocessor, and threads of a block."""

    held: int
    together: int
    block: int


# H200, bf16, us, and by threads with 64 bytes, a quarter of them on a multiprocessor: rms_norm 32768 x 128 14.2 (14.9),
# 262144 x 128 57.7 (58.9), 2097152 x 16 57.2 (92.6), 1000 x 128 6.1 (7.3); layer_norm 262144 x 128 61.0 (63.1). By 256
# threads layer_norm 130561 x 257 82.8, 72.3 by 128.
SIDE = RowsTogether(32, 16384, 128)
_WASTED = 8  # a part of the vectors of a row that may lie beyond it, if fewer threads have fewer


@dataclass(frozen=True, eq=False)
class RowGradients:
    """An operator whose source ends in ROW_GRADIENTS: inputs [..., n] and a weight [n] to a gradient [..., n], sums [n]."""

    source: Source
    name: str
    inputs: tuple[str, ...]
    sums: tuple[str, ...]

    def run(
        self, walk: str, inputs: tuple[torch.Tensor, ...], weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, ...]:
        """The gradient like the inputs, then the sums, like the weight; all tensors are contiguous.

        walk: "pipelined", for rows that a block holds, "two_pass" or "fastest".
        """
        x, n = inputs[0], weight.numel()
        grad = torch.empty_like(x)
        if not x.numel():
            return grad, *(torch.zeros_like(weight) for _ in self.sums)
        work = RowWork(x.numel() // n, n, 1, x.dtype, row_width((*inputs, weight), n), 1)
        if walk == "fastest":
            walk = "pipelined" if self.holds(work, card(x)) else "two_pass"
        return grad, *_WALKS[walk](self, work, _peeled(work, (*inputs, weight), walk), eps, (*inputs, weight, grad))

    def holds(self, work: RowWork, on: Card) -> bool:
        """Whether a block holds such rows, and the sums of their columns."""
        n, room = work.n, on.shared_per_processor - _OTHER_SHARED
        ways = ((work.width, False), (ACCESS_BYTES // work.dtype.itemsize, True))
        fits = max(self.stage(n, work.dtype.itemsize, *way) for way in ways) <= room
        return n * len(self.sums) <= SUMS_LIMIT and n * work.dtype.itemsize <= BYTES_LIMIT and fits

    def stage(self, n: int, itemsize: int, width: int, peeled: bool) -> int:
        """Bytes of shared memory of the rows that a block works on at a time, or of the sums of those side by side."""
        plan, _ = gradient_plan(n, itemsize, width, peeled)
        sums = 4 * plan.rows * n if plan.rows > 1 else 0
        return max(sums, len(self.inputs) * plan.vectors * plan.threads * plan.width * itemsize)

    def least_shared(self, call: Call) -> int:
        """Bytes of shared memory that a block needs for a call, whatever its rows are aligned to."""
        n, itemsize = call.axes["N"], call.arguments["weight"].element_size()
        ways = [(w, False) for w in (1, 2, 4, 8) if n % w == 0 and w * itemsize <= ACCESS_BYTES]
        ways.append((ACCESS_BYTES // itemsize, True))
        return max(self.stage(n, itemsize, *way) for way in ways) + _OTHER_SHARED // 2

    def kernel(self, way: str, walk: str, work: RowWork, **defines: object) -> Kernel:
        """The kernel `<name>_<way>`, which walks as the function `walk` of row_gradients.cuh does."""
        entry = f"{self.name}_{way}"
        signature = f"{' '.join(f'{name}*' for name in self.inputs)} weight* grad_x* stats* partial* total0* total1*"
        fixed = {"ENTRY": entry, "WALK": walk, "ELEMENT": ctype(work.dtype)}
        return self.source.kernel(entry, f"{signature} rows:i64 n:i32 chunk:i32 eps:f32", **fixed, **defines)


def _peeled(work: RowWork, tensors: tuple[torch.Tensor, ...], walk: str) -> RowWork:
    """The work in whole vectors, where the rows of a thread can begin alike and would be read a few bytes at a time."""
    width, itemsize = common_width(tensors), work.dtype.itemsize
    if work.width * itemsize >= _NARROW or width * itemsize < ACCESS_BYTES:
        return work
    if work.n * itemsize > _SHORT:
        return work._replace(width=width, peeled=True)
    # Elements of 2 bytes are not brought to the ring while a block works: each thread would wait for them.
    single = walk == "pipelined" and work.width * itemsize == 2 and work.n * itemsize >= _PEELED_SIDE
    return work._replace(width=width // 2, peeled=True) if single else work


def _total(partial: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The sum of the parts, like the weight; the kernel that makes them says when this one may start."""
    total = torch.empty_like(weight)
    sum_partial(partial, total, card(partial).capability >= (9, 0))
    return total


def _partial(op: RowGradients, parts: int, work: RowWork, like: torch.Tensor) -> torch.Tensor:
    return torch.empty((len(op.sums), parts, work.n), dtype=torch.float32, device=like.device)


def _two_pass(op: RowGradients, work: RowWork, peeled: RowWork, eps: float, tensors: tuple[torch.Tensor, ...]) -> Sums:
    """Pieces of rows for what each row needs, then down the columns, which rows that begin anywhere do not share."""
    weight, like = tensors[-2], tensors[0]
    plan = _two_launches(op, work, peeled, eps, card(like).processors)
    stats = torch.empty((work.rows, plan.stats), dtype=torch.float32, device=like.device)
    plan.pieces(*tensors, stats, None, None, None)
    if plan.chunks == 1:
        totals = tuple([torch.empty_like(weight) for _ in op.sums])
        plan.descending(*tensors, stats, None, *(*totals, None)[:2])
        return totals
    partial = _partial(op, plan.chunks, work, like)
    plan.descending(*tensors, stats, partial, None, None)
    return tuple([_total(part, weight) for part in partial])


class TwoLaunches(NamedTuple):
    """Both launches, the fp32 numbers that the first leaves of a row, and the chunks of rows of the second."""

    pieces: BoundLaunch
    descending: BoundLaunch
    stats: int
    chunks: int


@remembered
def _two_launches(op: RowGradients, work: RowWork, peeled: RowWork, eps: float, processors: int) -> TwoLaunches:
    return two_launches(op, work, peeled, eps, descending_plan(work, processors))


class DescendingPlan(NamedTuple):
    """Pieces of a row, which are a matter of its length alone; of the second launch the rows of a block, elements of an
    access, threads side by side, and rows that are walked down side by side."""

    pieces: int
    chunk: int
    width: int
    group: int
    sides: int


def descending_plan(work: RowWork, processors: int) -> DescendingPlan:
    pieces = min(_MOST_PIECES, next_power(cdiv(work.n, _PIECE)))
    chunk, width = max(_ROW_CHUNK, cdiv(work.rows, _MOST_CHUNKS)), work.width
    chunks, least = cdiv(work.rows, chunk), _NARROWEST // work.dtype.itemsize
    if cdiv(work.n, _COLUMN_BLOCK * width) * chunks >= 2 * processors:
        return DescendingPlan(pieces, chunk, width, _COLUMN_BLOCK, 1)
    while width > least and cdiv(work.n, _WARP * width) * chunks < processors:
        width //= 2
    return DescendingPlan(pieces, chunk, width, _WARP, max(1, min(_MOST_SIDES, next_power(work.rows))))


def two_launches(op: RowGradients, work: RowWork, peeled: RowWork, eps: float, plan: DescendingPlan) -> TwoLaunches:
    """peeled: the work as the first launch takes it."""
    element, pieces = ctype(work.dtype), plan.pieces
    piece = cdiv(work.n, pieces * _PIECE_UNIT) * _PIECE_UNIT
    flight, least, down = unroll(peeled.width, element), unroll(plan.width, element), 8 if plan.sides == 1 else 4
    threads = max(_WARP, min(_PIECE_BLOCK, next_power(cdiv(piece, flight * peeled.width))))
    wide = {
        "WIDTH": peeled.width,
        "GROUP": threads,
        "UNROLL": flight,
        "PIECES": pieces,
        "PEELED": int(peeled.peeled),
    }
    narrow = {
        "WIDTH": plan.width,
        "GROUP": plan.group,
        "ROWS": plan.sides,
        "UNROLL": min(down, least),
        "PIECES": pieces,
    }
    first, then = op.kernel("pieces", "pieces", work, **wide), op.kernel("columns", "descending", work, **narrow)
    chunks = cdiv(work.rows, plan.chunk)
    grid = (cdiv(work.n, plan.group * plan.width), chunks)
    return TwoLaunches(
        first.bind(work.rows * pieces, threads, work.rows, work.n, piece, eps),
        then.bind(grid, (plan.group, plan.sides), work.rows, work.n, plan.chunk, eps, follows=True),
        pieces * _STATE_FLOATS,
        chunks,
    )


def _pipelined(op: RowGradients, _: RowWork, work: RowWork, eps: float, tensors: tuple[torch.Tensor, ...]) -> Sums:
    """Blocks that walk down the rows."""
    on = card(tensors[0])
    launch, blocks = _staying(op, work, eps, on.processors, on.shared_per_processor)
    partial = _partial(op, blocks, work, tensors[0])
    launch(*tensors, None, partial, None, None)
    return tuple([_total(part, tensors[-2]) for part in partial])


def gradient_plan(n: int, itemsize: int, width: int, peeled: bool = False) -> tuple[RowPlan, bool]:
    """How a block that stays deals its rows, and whether threads hold their values between the two uses."""
    plan, hold = row_plan(n, itemsize, width, _HELD, _LONG_HELD, peeled), False
    if plan.group <= _WARP:
        columns = columns_of_vectors(n, width, peeled)
        plan = side_by_side(columns, itemsize, width, SIDE)
        # H200, bf16, us by a block less for peeled rows, and as many: rms_norm of 516222 x 65 71.0 and 77.2.
        return replace(plan, peeled=peeled, blocks=max(1, plan.blocks - peeled)), False
    if _LARGE[0] <= n <= _LARGE[1] and width * itemsize == ACCESS_BYTES:
        held = cdiv(n * itemsize, _THREADS * ACCESS_BYTES) * ACCESS_BYTES
        plan = row_plan(n, itemsize, width, held, held, peeled)
    elif _MIDDLE[0] <= n * itemsize <= _MIDDLE[1]:
        plan = row_plan(n, itemsize, width, _HELD // 2, _HELD // 2, peeled)
        hold = plan.threads <= 512 and width * itemsize == ACCESS_BYTES
    return replace(plan, blocks=max(1, _THREADS // plan.threads)), hold


def side_by_side(n: int, itemsize: int, width: int, rule: RowsTogether) -> RowPlan:
    """Rows that fit a warp: as few lanes as hold one by the rule, fewer where many of their vectors would lie beyond it.

    What a row takes beside its elements is shared by more of them in a thread; with fewer there are more threads, whose
    waits for one another's sums overlap.
    """
    units, size = cdiv(n, width), width * itemsize
    group = min(_WARP, next_power(max(cdiv(units * size, rule.held), cdiv(units, _MOST_SIDES), min(units, 4))))
    while group > 4:
        less = cdiv(units, group // 2)
        fewer = _WASTED * less * (group // 2) <= (_WASTED - 1) * cdiv(units, group) * group
        if not fewer or less > _MOST_SIDES or less * size > min(_HELD, 2 * rule.held):
            break
        group //= 2
    vectors = max(1, cdiv(units, group))
    blocks = max(1, min(_MOST_THREADS, rule.together // (vectors * size)) // rule.block)
    return RowPlan(width, group, vectors, rule.block // group, blocks, units // group)


@remembered
def _staying(op: RowGradients, work: RowWork, eps: float, processors: int, shared: int) -> tuple[BoundLaunch, int]:
    """The launch and its number of blocks, on a device with `shared` bytes per multiprocessor."""
    plan, hold = gradient_plan(work.n, work.dtype.itemsize, work.width, work.peeled)
    stage = op.stage(work.n, work.dtype.itemsize, work.width, work.peeled)
    stages = max(1, min(_STAGES, (shared // plan.blocks - _OTHER_SHARED) // stage))
    kernel = op.kernel("pipelined", "staying", work, **plan.defines, STAGES=stages, HOLD=int(hold))
    blocks = _blocks(work.rows, plan, plan.blocks * processors)
    if work.peeled:  # so many rows apart they begin alike
        unit = max(1, work.width // plan.rows)
        blocks = min(cdiv(work.rows, plan.rows), max(1, blocks // unit) * unit)
    return kernel.bind(blocks, plan.block, work.rows, work.n, 0, eps, shared=stages * stage), blocks


def _blocks(rows: int, plan: RowPlan, most: int) -> int:
    """Each has at least 8 rows to spread the cost of its partial sums over, if there are many."""
    wanted = max(cdiv(rows, max(_LEAST_ROWS, plan.rows)), min(cdiv(rows, plan.rows), _FIRST_BLOCKS))
    return max(1, min(wanted, most))


_WALKS: dict[str, Callable[..., Sums]] = {"two_pass": _two_pass, "pipelined": _pipelined}


@dataclass(frozen=True)
class RowAtMost:
    """A row takes no more than `bytes`."""

    bytes: int

    @property
    def text(self) -> str:
        return f"rows of at most {self.bytes} bytes"

    def check(self, call: Call) -> str | None:
        """None, or how long the row is."""
        taken = call.axes["N"] * call.arguments["weight"].element_size()
        return None if taken <= self.bytes else f"a row has {taken} bytes, needs {self.text}"


def _implementation(
    op: RowGradients, fn: Callable[..., Any], idea: str, requires: tuple[Condition, ...] = ()
) -> Implementation:
    """A block adds up the sums row by row (1.06 of the bound of other orders for 130 equal rows, on an H200)."""
    arithmetic = {"grad_x": "fp32", **dict.fromkeys(op.sums, "fp32_sequential")}
    layout = dict.fromkeys((*op.inputs, "weight"), "contiguous")
    return Implementation(fn, idea, requires, layout, arithmetic, exempt=peeled(op.inputs[0]))


def gradient_variants(op: RowGradients, call: Callable[..., Any]) -> dict[str, Implementation]:
    """Both walks as variants; `call` takes the name of one, then what the operator takes."""
    down = "pieces of rows, then down the columns for gradients and sums"
    once = "one read: sums stay in registers, the next rows arrive meanwhile"
    limits = (AtMost("N", SUMS_LIMIT // len(op.sums)), RowAtMost(BYTES_LIMIT), SharedMemory(op.least_shared))
    return {
        "two_pass": _implementation(op, partial(call, "two_pass"), down),
        "pipelined": _implementation(op, partial(call, "pipelined"), once, limits),
        **_few_rows(op, call),
    }


def gradient_variant(op: RowGradients, call: Callable[..., Any]) -> dict[str, Implementation]:
    """The same as one variant, pipelined as far as a block holds the row, and that of few rows."""
    idea = "one read as far as a block holds the row, with sums in registers; else pieces of rows, then columns"
    return {"rows": _implementation(op, partial(call, "fastest"), idea), **_few_rows(op, call)}


def _few_rows(op: RowGradients, call: Callable[..., Any]) -> dict[str, Implementation]:
    idea = "pieces of few long rows, then columns: more blocks than rows"
    conditions = (MostRows(op.inputs[0], FEW_ROWS), AtLeast("N", LONG_ROWS))
    return {"few_rows": _implementation(op, partial(call, "two_pass"), idea, conditions)}
