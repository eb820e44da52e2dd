"""Gradients of row operators with weights: one tensor like the rows, and sums down the columns of all rows.

`row_gradients.cuh` has the kernels. How rows are dealt to blocks depends on their number: the sums down the columns are
those of a call; a row's own gradient does not depend on the others.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from kernelmux.backends.cuda._families.elementwise import ACCESS_BYTES, common_width
from kernelmux.backends.cuda._families.rows import RowPlan, RowWork, row_plan, row_width
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Kernel, Source, card, cdiv, ctype
from kernelmux.backends.cuda.reduce_sum._sums import sum_partial
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost, Condition, SharedMemory
from kernelmux.registry.spec import Call
from kernelmux.registry.util.cards import Card, remembered

SUMS_LIMIT = 24576  # fp32 sums in the registers of a block, beside the weights
BYTES_LIMIT = 36864  # of a row: two of three inputs in shared memory
_ROW_FLOATS = 4  # the most that an operator's Row has
_BLOCK, _COLUMN_BLOCK = 256, 128
# Threads of a longer row of 16 bits in two passes; of fp32 they would spill. H200, bf16, rms_norm: 2048 x 25408 149 us
# (165 by 256), 7 x 25408 15.7 (17.2).
_LONG_BLOCK, _LONG_ROW = 1024, 16384
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
_THREADS = 256  # per multiprocessor, in blocks of fewer; 64 bytes of each, two rows ahead, keep the memory busy
_STAGES = 3  # rows in the ring, where shared memory has room for them
_OTHER_SHARED = 2048  # bytes of a block beside the ring: its sums, and 1 KiB of the system


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
        if walk == "pipelined":
            work = _peeled(work, inputs)
        partial = _WALKS[walk](self, work, eps, (*inputs, weight, grad))
        return grad, *(_total(part, weight, walk == "pipelined") for part in partial)

    def holds(self, work: RowWork, on: Card) -> bool:
        """Whether a block holds such rows, and the sums of their columns."""
        n, room = work.n, on.shared_per_processor - _OTHER_SHARED
        widths = (work.width, ACCESS_BYTES // work.dtype.itemsize)  # the second where rows are peeled
        fits = max(self.stage(n, work.dtype.itemsize, width) for width in widths) <= room
        return n * len(self.sums) <= SUMS_LIMIT and n * work.dtype.itemsize <= BYTES_LIMIT and fits

    def stage(self, n: int, itemsize: int, width: int) -> int:
        """Bytes of shared memory of the rows that a block works on at a time."""
        plan, _ = gradient_plan(n, itemsize, width)
        return len(self.inputs) * plan.vectors * plan.threads * plan.width * itemsize

    def least_shared(self, call: Call) -> int:
        """Bytes of shared memory that a block needs for a call, whatever its rows are aligned to."""
        n, itemsize = call.axes["N"], call.arguments["weight"].element_size()
        widths = [w for w in (1, 2, 4, 8) if n % w == 0 and w * itemsize <= ACCESS_BYTES]
        return max(self.stage(n, itemsize, width) for width in (*widths, ACCESS_BYTES // itemsize)) + _OTHER_SHARED // 2

    def kernel(self, way: str, walk: str, work: RowWork, **defines: object) -> Kernel:
        """The kernel `<name>_<way>`, which walks as the function `walk` of row_gradients.cuh does."""
        entry = f"{self.name}_{way}"
        signature = f"{' '.join(f'{name}*' for name in self.inputs)} weight* grad_x* stats* partial*"
        fixed = {"ENTRY": entry, "WALK": walk, "ELEMENT": ctype(work.dtype)}
        return self.source.kernel(entry, f"{signature} rows:i64 n:i32 chunk:i32 eps:f32", **fixed, **defines)


def _peeled(work: RowWork, inputs: tuple[torch.Tensor, ...]) -> RowWork:
    """The work in whole vectors, where the rows of a block can begin alike and would be read a few bytes at a time."""
    width, itemsize = common_width(inputs), work.dtype.itemsize
    narrow = work.width * itemsize < _NARROW and work.n * itemsize > _SHORT
    return work._replace(width=width, peeled=True) if narrow and width * itemsize == ACCESS_BYTES else work


def _total(partial: torch.Tensor, weight: torch.Tensor, ahead: bool) -> torch.Tensor:
    """The sum of the parts, like the weight; ahead: the kernel that makes them says when this one may start."""
    total = torch.empty_like(weight)
    overlaps = card(partial).capability >= (9, 0)  # a kernel may start before the one that it waits for has ended
    sum_partial(partial, total, ahead and overlaps)
    return total


def _partial(op: RowGradients, parts: int, work: RowWork, like: torch.Tensor) -> torch.Tensor:
    return torch.empty((len(op.sums), parts, work.n), dtype=torch.float32, device=like.device)


def _two_pass(op: RowGradients, work: RowWork, eps: float, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Along the rows, which leaves what each needs, then down the columns for the sums."""
    chunk = max(_ROW_CHUNK, cdiv(work.rows, _MOST_CHUNKS))
    partial = _partial(op, cdiv(work.rows, chunk), work, tensors[0])
    stats = torch.empty((work.rows, _ROW_FLOATS), dtype=torch.float32, device=partial.device)
    for launch in _two_launches(op, work, chunk, eps):
        launch(*tensors, stats, partial)
    return partial


@remembered
def _two_launches(op: RowGradients, work: RowWork, chunk: int, eps: float) -> tuple[BoundLaunch, BoundLaunch]:
    numbers = (work.rows, work.n, chunk, eps)
    threads = _LONG_BLOCK if work.n > _LONG_ROW and work.dtype.itemsize == 2 else _BLOCK
    along = op.kernel("rows", "along", work, WIDTH=work.width, GROUP=threads)
    columns = op.kernel("columns", "descending", work, WIDTH=work.width, GROUP=_COLUMN_BLOCK)
    grid = (cdiv(work.n, _COLUMN_BLOCK * work.width), cdiv(work.rows, chunk))
    return along.bind(work.rows, threads, *numbers), columns.bind(grid, _COLUMN_BLOCK, *numbers)


def _pipelined(op: RowGradients, work: RowWork, eps: float, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Blocks that walk down the rows."""
    on = card(tensors[0])
    launch, blocks = _staying(op, work, eps, on.processors, on.shared_per_processor)
    partial = _partial(op, blocks, work, tensors[0])
    launch(*tensors, None, partial)
    return partial


def gradient_plan(n: int, itemsize: int, width: int) -> tuple[RowPlan, bool]:
    """How a block that stays deals its rows, and whether threads hold their values between the two uses."""
    if _LARGE[0] <= n <= _LARGE[1] and width * itemsize == ACCESS_BYTES:
        held = cdiv(n * itemsize, _THREADS * ACCESS_BYTES) * ACCESS_BYTES
        return row_plan(n, itemsize, width, held, held), False
    if not _MIDDLE[0] <= n * itemsize <= _MIDDLE[1]:
        return row_plan(n, itemsize, width, _HELD, _LONG_HELD), False
    plan = row_plan(n, itemsize, width, _HELD // 2, _HELD // 2)
    return plan, plan.threads <= 512 and width * itemsize == ACCESS_BYTES


@remembered
def _staying(op: RowGradients, work: RowWork, eps: float, processors: int, shared: int) -> tuple[BoundLaunch, int]:
    """The launch and its number of blocks, on a device with `shared` bytes per multiprocessor."""
    plan, hold = gradient_plan(work.n, work.dtype.itemsize, work.width)
    if work.peeled:
        whole = (work.n - work.width + 1) // work.width
        plan = replace(plan, inside=min(plan.vectors, whole // plan.group), peeled=True)
    resident = max(1, _THREADS // plan.threads)
    stage = op.stage(work.n, work.dtype.itemsize, work.width)
    stages = max(1, min(_STAGES, (shared // resident - _OTHER_SHARED) // stage))
    defines = {**plan.defines, "MIN_BLOCKS": resident, "STAGES": stages, "HOLD": int(hold)}
    kernel = op.kernel("pipelined", "staying", work, **defines)
    blocks = _blocks(work.rows, plan, resident * processors)
    if work.peeled and blocks > work.width:
        blocks = blocks // work.width * work.width
    return kernel.bind(blocks, plan.block, work.rows, work.n, 0, eps, shared=stages * stage), blocks


def _blocks(rows: int, plan: RowPlan, most: int) -> int:
    """Each has at least 8 rows to spread the cost of its partial sums over, if there are many."""
    wanted = max(cdiv(rows, max(_LEAST_ROWS, plan.rows)), min(cdiv(rows, plan.rows), _FIRST_BLOCKS))
    return max(1, min(wanted, most))


_WALKS: dict[str, Callable[..., torch.Tensor]] = {"two_pass": _two_pass, "pipelined": _pipelined}


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
    return Implementation(fn, idea, requires, dict.fromkeys((*op.inputs, "weight"), "contiguous"), arithmetic)


def gradient_variants(op: RowGradients, call: Callable[..., Any]) -> dict[str, Implementation]:
    """Both walks as variants; `call` takes the name of one, then what the operator takes."""
    down = "along the rows for their gradients, then down the columns for the sums"
    once = "one read: sums stay in registers, the next rows arrive meanwhile"
    limits = (AtMost("N", SUMS_LIMIT // len(op.sums)), RowAtMost(BYTES_LIMIT), SharedMemory(op.least_shared))
    return {
        "two_pass": _implementation(op, partial(call, "two_pass"), down),
        "pipelined": _implementation(op, partial(call, "pipelined"), once, limits),
    }


def gradient_variant(op: RowGradients, call: Callable[..., Any]) -> dict[str, Implementation]:
    """The same as one variant, pipelined as far as a block holds the row."""
    idea = "one read as far as a block holds the row, with sums in registers; else rows, then columns"
    return {"rows": _implementation(op, partial(call, "fastest"), idea)}
