"""cross_entropy_with_gradient: the loss of each row and its gradient in one kernel.

two_pass  a program reads rows that it does not hold twice, the second time from L2
staying   of these most waits in shared memory of programs that stay and walk down rows, the next one on its way meanwhile

Either way rows of up to 64 KiB stay in the registers of a program. Few long rows are read in pieces, a program for each,
and again by programs that write the gradient.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
import triton.language as tl

from kernelmux.backends.triton._families.elementwise import ACCESS_BYTES
from kernelmux.backends.triton._launch.launch import (
    Config,
    Launch,
    cdiv,
    like,
    overlaps,
    plan,
    processors,
    shared_bytes,
)
from kernelmux.backends.triton._launch.strides import Ints, contiguous
from kernelmux.backends.triton._losses.loss_pieces import loss_pieces_kernel
from kernelmux.backends.triton._losses.loss_rows import loss_rows_kernel
from kernelmux.backends.triton._losses.loss_shared import loss_shared_kernel
from kernelmux.backends.triton._losses.loss_sums import added, counted
from kernelmux.backends.triton._rows.row_op import PEELED, RowLaunch, launch_of_pieces
from kernelmux.backends.triton._rows.row_pieces_plan import in_pieces
from kernelmux.backends.triton._rows.row_plan import LONG, Demand, RowAccess, access_of
from kernelmux.backends.triton._rows.rows import Walk, next_power, walk
from kernelmux.backends.triton.cross_entropy import PLAIN, SMOOTHED, cross_entropy_join_kernel
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Capability

ELEMENTS, BATCH = 8192, 2  # of a chunk at most; chunks in flight
# Warps that hold a row in 64 registers of a thread, and bytes of a thread at most: the first that take it. H200, us (CUDA):
# bf16, 41243 x 1664 76.0 by 2 warps, 87.0 by 4 (89.1), 30000 x 3000 101.3, 100.6 (108.5), 18560 x 6677 136.5 by 4, 143.3 by
# 8 (139.5), 8192 x 16384 143.8 by 8, 144.3 by 16 (141.2), 4096 x 32000 138.3 by 16 (137.3); fp32, 20000 x 1664 76.4 by 2,
# 75.9 by 4 (82.1), 4096 x 16384 141.7 by 16, 215.9 by 8 (138.4).
HOLDERS = ((2, 64), (4, 128), (8, 128), (16, 128))


class PersistentPrograms(NamedTuple):
    """Programs that stay, `shares` on a multiprocessor.

    batch: chunks of a step, each of one access per thread. lag: steps from those of the next row that are looked at to
    those whose gradients are written.
    """

    warps: int
    shares: int
    batch: int
    lag: int


# The first one that keeps all of a row that no program holds, else the last. H200, bf16, us (CUDA; before a row was looked
# at while the one ahead is written): 4096 x 50257 257.2 (246.0; 341.5), with steps of two chunks 258.9; 4096 x 128256 575.7
# (526.7; 748.2), with a lag of two steps 615.6; 640 x 256000 207.5 (193.8; 260.1).
RINGS = (PersistentPrograms(16, 2, batch=1, lag=3), PersistentPrograms(32, 1, batch=2, lag=3))
REST = 2  # chunks of a row in registers at most, beside those in shared memory
RESERVED = 1536  # bytes of shared memory beside the ring: sums across warps, and 1 KiB of the system

# Of few long rows: elements of a chunk, its warps, chunks of a piece, bytes of a tile of the gradient and its warps.
# H200, bf16, us by pieces of one, two and four chunks: 16 x 128256 9.5, 9.4 and 9.5, 64 x 50257 14.0, 13.1 and 13.4, 64 x
# 128256 23.2, 17.9 and 17.8.
PIECE_BLOCK, PIECE_WARPS, PIECE_CHUNKS = 2048, 8, 2
TILE_BYTES, TILE_WARPS = 8192, 4
SHARE, ODD_SHARE = 1, 2  # multiprocessors to such a row at least; where its elements are read one by one
MOST_PIECES = 8192  # of all rows, each with a power of two of them: the program of the losses has them in registers


def cross_entropy_with_gradient(
    way: str, logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float,
    reduction: str,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    grad = like(logits)
    work = (logits.shape, logits.stride(), logits.dtype, target.stride(0), ignore_index, label_smoothing)
    if grad.numel() and (pieces := _in_pieces(*work, reduction, logits.get_device())):
        return pieces(grad, logits, target), grad
    loss = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    counts = counted(target, ignore_index) if reduction == "mean" else None
    if grad.numel():
        many, room = 0 if counts is None else counts.shape[0], _room(logits.get_device())
        launch = _staying(*work, many, room) if way == "staying" and _aligned(logits) else None
        launch = launch or _two_pass(*work, many, room)
        launch(loss, grad, logits, target, *(() if counts is None else (counts,)))
    return (loss if reduction == "none" else added(loss, counts, reduction)), grad


def _aligned(logits: torch.Tensor) -> bool:
    return logits.data_ptr() % ACCESS_BYTES == 0


def _room(device: int) -> Ints:
    """Multiprocessors, the bytes of shared memory that a program may have, and whether kernels overlap."""
    return processors(device), shared_bytes(device), int(overlaps(device))


class InPieces(NamedTuple):
    """Launches for pieces of rows, and for the losses and the gradient; how many numbers the first leaves to the second,
    and the shape of the loss."""

    pieces: RowLaunch
    losses: Launch
    known: int
    loss: Ints

    def __call__(self, grad: torch.Tensor, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        known = torch.empty(self.known, dtype=torch.float32, device=logits.device)
        loss = torch.empty(self.loss, dtype=torch.float32, device=logits.device)
        self.pieces(known, logits)
        self.losses(loss, grad, known, logits, target)
        return loss


@plan
def _in_pieces(
    shape: Ints, strides: Ints, dtype: torch.dtype, target_step: int, ignore_index: int, smoothing: float,
    reduction: str, device: int,
) -> InPieces | None:  # fmt: skip
    """None for rows that are not few and long."""
    w = walk(-1, shape, contiguous(shape), strides)
    if not few_and_long(w, device):
        return None
    return launches_in_pieces(shape, dtype.itemsize, target_step, ignore_index, smoothing, reduction, device)


def few_and_long(w: Walk, device: int) -> bool:
    """Whether no program holds a row, and rows are so few that a program for each would leave multiprocessors idle.

    H200, bf16, us, and by a program for each row: 1 x 128256 6.5 (26.0), 5 x 231360 7.8 (38.7), 64 x 128256 17.9 (31.8),
    132 x 128256 31.7 (37.7); of odd lengths 64 x 128257 24.5 (29.9), 132 x 50257 21.8 (21.1).
    """
    if w.sizes == (1,):  # whatever the stride of a single row is
        w = w._replace(strides=tuple((w.length,) for _ in w.strides))
    rows, pieces = w.sizes[0], cdiv(w.length, PIECE_BLOCK * PIECE_CHUNKS)
    fits, share = next_power(rows) * next_power(pieces) <= MOST_PIECES, ODD_SHARE if w.length % 2 else SHARE
    return fits and in_pieces(w, {"num_warps": HOLDERS[-1][0]}, Demand(1, 0, w.length, 0, device), share)


def launches_in_pieces(
    shape: Ints, itemsize: int, target_step: int, ignore_index: int, smoothing: float, reduction: str, device: int,
    chunks: int = PIECE_CHUNKS, tile: int = TILE_BYTES,
) -> InPieces:  # fmt: skip
    """Pieces of so many chunks, tiles of so many bytes. How long pieces are does not depend on the rows."""
    (M, V), numbers = shape, 3 if smoothing else 2
    config = {"BLOCK": PIECE_BLOCK, "CHUNKS": chunks, "num_warps": PIECE_WARPS}
    first, pieces = launch_of_pieces(SMOOTHED if smoothing else PLAIN, device, M, V, itemsize, 1, (), config)
    unit, block, leads = math.gcd(V, ACCESS_BYTES // itemsize), tile // itemsize, overlaps(device)
    early: Config = {"launch_pdl": True} if leads else {}
    then = Launch(
        loss_pieces_kernel, (1 + M * cdiv(V, block),), M, V, V // unit, target_step, ignore_index, smoothing,
        join=cross_entropy_join_kernel, WANTED=reduction, SMOOTHED=smoothing != 0, PIECES=pieces,
        LANES=next_power(pieces), ROWS=next_power(M), BLOCK=block, UNIT=unit, LEADS=leads, num_warps=TILE_WARPS, **early,
    )  # fmt: skip
    return InPieces(first, then, M * (numbers * pieces + 1), (M,) if reduction == "none" else ())


@plan
def _two_pass(
    shape: Ints, strides: Ints, dtype: torch.dtype, target_step: int, ignore_index: int, smoothing: float, counts: int,
    room: Ints,
) -> Launch:  # fmt: skip
    """counts: parts of the number of rows that count, 0 if it is not asked for."""
    (M, V), size = shape, dtype.itemsize
    access = access_of(walk(-1, shape, contiguous(shape), strides), size)
    config = _held(V, access, size) or _walked(V, access)
    batches = config.pop("BATCHES")
    slack = (access.width - 1) * access.peeled
    block, whole = config["BLOCK"], V // access.width * access.width if access.peeled else V
    return Launch(
        loss_rows_kernel, (cdiv(M, config["ROWS"]),), *_absent(counts), M, V, strides[0] // access.unit, strides[1],
        target_step, ignore_index, smoothing, batches,
        BATCH=BATCH if batches else 0, HELD=max(1, cdiv(whole, block)) - batches * BATCH,
        FULL=max(0, V - slack) // block - batches * BATCH, UNIT=access.unit, WIDTH=access.width,
        PEELED=access.width if access.peeled else 0, DENSE=strides[1] == 1, SMOOTHED=smoothing != 0,
        INDEX=tl.int32 if V + block < 2**31 else tl.int64, maxnreg=64, **config, **_counting(counts, room),
    )  # fmt: skip


def _absent(counts: int) -> tuple[None, ...]:
    """What stands for the counts where there are none."""
    return () if counts else (None,)


def _counting(counts: int, room: Ints) -> Config:
    """What a kernel must know of the counts: it starts while they are taken."""
    follows = bool(counts) and bool(room[2])
    return {"COUNTS": counts, "FOLLOWS": follows, **({"launch_pdl": True} if follows else {})}


def _held(V: int, access: RowAccess, itemsize: int) -> Config | None:
    """A program holds its row, of several chunks of one access per thread."""
    if access.width < 2 or V * itemsize <= LONG:
        return None
    for warps, most in HOLDERS:
        block = 32 * warps * access.width
        if cdiv(V, block) * access.width * itemsize <= most:
            return {"ROWS": 1, "BLOCK": block, "BATCHES": 0, "num_warps": warps}
    return None


def _walked(V: int, access: RowAccess) -> Config:
    """A program reads its rows twice, but for their ends."""
    block = min(ELEMENTS, max(16, next_power(V)))
    rows = 1 if access.peeled else max(1, ELEMENTS // 4 // block)
    slack = (access.width - 1) * access.peeled
    chunks = max(1, cdiv(V, block))
    batches = min(chunks - 1, max(0, V - slack) // block) // BATCH  # of chunks that lie inside every row
    return {"ROWS": rows, "BLOCK": block, "BATCHES": batches, "num_warps": min(32, max(1, rows * block // 256))}


@plan
def _staying(
    shape: Ints, strides: Ints, dtype: torch.dtype, target_step: int, ignore_index: int, smoothing: float, counts: int,
    room: Ints,
) -> Launch | None:  # fmt: skip
    """None for rows that a program holds, or that cannot be read in whole vectors but for their ends."""
    (M, V), width = shape, ACCESS_BYTES // dtype.itemsize
    access = access_of(walk(-1, shape, contiguous(shape), strides), dtype.itemsize)
    if access.width != width or V * dtype.itemsize <= LONG or _held(V, access, dtype.itemsize):
        return None
    rings = [_ring(form, V, access, dtype.itemsize, room[1]) for form in RINGS]
    form, chunks = next(
        (pair for pair in zip(RINGS, rings, strict=True) if not pair[1]["AGAIN"]), (RINGS[-1], rings[-1])
    )
    registers = 65536 // (32 * form.warps * form.shares) // 8 * 8
    batches = chunks.pop("batches")
    return Launch(
        loss_shared_kernel, (min(M, form.shares * room[0]),), *_absent(counts), M, V, strides[0] // access.unit,
        target_step, ignore_index, smoothing, batches,
        UNIT=access.unit, WIDTH=width, PEELED=width if access.peeled else 0, SMOOTHED=smoothing != 0,
        num_warps=form.warps, maxnreg=registers, **chunks, **_counting(counts, room),
    )  # fmt: skip


def _ring(form: PersistentPrograms, V: int, access: RowAccess, itemsize: int, shared: int) -> Config:
    """Which chunks of a row are where."""
    slack = access.width - 1 if access.peeled else 0
    block = 32 * form.warps * access.width
    chunks, full = cdiv(V // access.width * access.width, block), (V - slack) // block  # at most, and inside every row
    ring = min((shared // form.shares - RESERVED) // (block * itemsize), chunks)
    batches = cdiv(max(0, chunks - ring - REST), form.batch)
    behind = ring + batches * form.batch
    return {
        "BLOCK": block, "BATCH": form.batch, "RING": ring, "LAG": form.lag, "AGAIN": batches > 0, "batches": batches,
        "TAIL": chunks - behind, "FULL": min(full, ring), "FULL_TAIL": max(0, full - behind),
        "STORE": "evict_first" if batches else "",  # L2 is for what is read again
    }  # fmt: skip


VARIANTS = {
    "two_pass": Implementation(
        fn=partial(cross_entropy_with_gradient, "two_pass"),
        idea="the second read of a row comes from L2",
        exempt=PEELED,
    ),
    "staying": Implementation(
        fn=partial(cross_entropy_with_gradient, "staying"),
        idea="of long rows all but the ends waits in shared memory, and the next row takes its place meanwhile",
        requires=(Capability((9, 0), below=(12, 0)),),  # of what later ones can keep of a row it would spill a part
        exempt=PEELED,
    ),
}
