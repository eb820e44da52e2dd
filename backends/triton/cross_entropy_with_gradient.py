"""cross_entropy_with_gradient: the loss of each row and its gradient in one kernel.

two_pass  a program reads its rows twice, the second time from L2
staying   programs stay and walk down rows, most of which wait in shared memory, the next one on its way meanwhile
"""

from __future__ import annotations

from functools import partial

import torch

from kernelmux.backends.triton._elementwise import ACCESS_BYTES
from kernelmux.backends.triton._launch import Launch, cdiv, like, plan, processors, shared_bytes
from kernelmux.backends.triton._loss_rows import loss_rows_kernel
from kernelmux.backends.triton._loss_shared import loss_shared_kernel
from kernelmux.backends.triton._row_op import PEELED
from kernelmux.backends.triton._row_plan import SPARE, access_of
from kernelmux.backends.triton._rows import next_power, walk
from kernelmux.backends.triton._strides import Ints, contiguous
from kernelmux.backends.triton._targets import losses, reduced
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Capability

ELEMENTS, BATCH = 8192, 2  # of a chunk at most; chunks in flight
RING_WARPS, RING_VECTORS, SHORTEST = (
    32,
    1,
    65536,
)  # of a program that stays, and of its threads in a chunk; bytes of a row


def cross_entropy_with_gradient(
    way: str, logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float,
    reduction: str,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    grad = like(logits)
    lse = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    mean = torch.empty_like(lse) if label_smoothing else None
    if grad.numel():
        count = (reduced("count", target, ignore_index),) if reduction == "mean" else ()
        work = (logits.shape, logits.stride(), logits.dtype, target.stride(0), ignore_index, label_smoothing)
        launcher = _staying if way == "staying" and _may_stay(logits) else _two_pass
        launcher(*work, not count, _room(logits.get_device()))(
            lse, grad, logits, target, lse if mean is None else mean, *count
        )
    if reduction != "none":
        return reduced(reduction, target, ignore_index, lse, mean, logits, label_smoothing), grad
    loss = torch.empty_like(lse)
    if loss.numel():
        losses(loss, lse, mean, logits, target, ignore_index, label_smoothing)
    return loss, grad


def _may_stay(logits: torch.Tensor) -> bool:
    """Rows of whole vectors, all of which start aligned, and long enough for a ring."""
    unit = ACCESS_BYTES // logits.dtype.itemsize
    (_, V), (step, along) = logits.shape, logits.stride()
    aligned = along == 1 and V % unit == 0 and step % unit == 0 and logits.data_ptr() % ACCESS_BYTES == 0
    return aligned and V * logits.dtype.itemsize >= SHORTEST


def _room(device: int) -> Ints:
    """Multiprocessors, and the bytes of shared memory that a program may have."""
    return processors(device), shared_bytes(device)


@plan
def _two_pass(
    shape: Ints, strides: Ints, dtype: torch.dtype, target_step: int, ignore_index: int, smoothing: float, plain: bool,
    room: Ints,
) -> Launch:  # fmt: skip
    M, V = shape
    access = access_of(walk(-1, shape, contiguous(shape), strides), dtype.itemsize)
    block = min(ELEMENTS, max(16, next_power(V)))
    rows = 1 if access.peeled else max(1, ELEMENTS // 4 // block)
    head, slack = (1, access.width - 1) if access.peeled else (0, 0)
    chunks = max(1, cdiv(V + slack, block) - head)  # behind the first one of a peeled row
    batches = min(chunks - 1, max(0, V - head * block) // block) // BATCH  # of chunks that lie inside every row
    absent = (None,) if plain else ()
    return Launch(
        loss_rows_kernel, (cdiv(M, rows),), *absent, M, V, strides[0] // access.unit, strides[1],
        target_step, ignore_index, smoothing, batches,
        ROWS=rows, BLOCK=block, BATCH=BATCH, TAIL=chunks - batches * BATCH, UNIT=access.unit, WIDTH=access.width,
        PEELED=access.width if access.peeled else 0, SPLIT=access.width > 1 and (access.peeled or V % access.width != 0),
        DENSE=strides[1] == 1, SMOOTHED=smoothing != 0, num_warps=min(32, max(1, rows * block // 256)), maxnreg=64,
    )  # fmt: skip


@plan
def _staying(
    shape: Ints, strides: Ints, dtype: torch.dtype, target_step: int, ignore_index: int, smoothing: float, plain: bool,
    room: Ints,
) -> Launch:  # fmt: skip
    (M, V), width = shape, ACCESS_BYTES // dtype.itemsize
    block = 32 * RING_WARPS * RING_VECTORS * width
    chunks = cdiv(V, block)
    ring = min((room[1] - SPARE) // (block * dtype.itemsize), chunks - 1) // BATCH
    batches = max(0, V // block - ring * BATCH - 1) // BATCH
    absent = (None,) if plain else ()
    return Launch(
        loss_shared_kernel, (min(M, room[0]),), *absent, M, V, strides[0] // width, target_step, ignore_index, smoothing,
        batches, BLOCK=block, BATCH=BATCH, BATCHES=ring, TAIL=chunks - (ring + batches) * BATCH, WIDTH=width,
        SPLIT=V % width != 0, SMOOTHED=smoothing != 0, num_warps=RING_WARPS,
    )  # fmt: skip


VARIANTS = {
    "two_pass": Implementation(
        fn=partial(cross_entropy_with_gradient, "two_pass"),
        idea="the second read of a row comes from L2",
        exempt=PEELED,
    ),
    "staying": Implementation(
        fn=partial(cross_entropy_with_gradient, "staying"),
        idea="of long aligned rows all but the end waits in shared memory, and the next row takes its place meanwhile",
        requires=(Capability((9, 0)),),
        exempt=PEELED,
    ),
}
