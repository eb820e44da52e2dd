"""Cross entropy and its gradient on CUDA, in one kernel.

two_pass  a row is read twice, the second time from L2
staying   the row stays in shared memory and registers, and the next one takes its place meanwhile: one read, one write;
          rows that do not fit, and short ones, as two_pass
"""

from functools import lru_cache, partial

import torch

from kernelmux.backends.cuda._elementwise import ACCESS_BYTES
from kernelmux.backends.cuda._runtime import Bound, Source, cdiv, ctype, multiprocessors
from kernelmux.backends.cuda._targets import reduced
from kernelmux.backends.cuda.cross_entropy import group_of
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Capability

SOURCE = Source(__file__)
TWO_PASS = Source(__file__, "cross_entropy_with_gradient_two_pass.cu")
_SIGNATURE = "logits* target* counted* loss* grad* rows:i64 n:i32 step:i64 ignored:i64 smoothing:f32"
_UNROLL = 4  # accesses of a thread in flight, where a row is read twice
_RING, _HELD, _BATCH = 12, 4, 4  # vectors of a thread: in shared memory, in registers, asked for together
_THREADS = 1024  # of a multiprocessor: with 64 registers each
# Bytes of a row. H200, bf16, staying and two_pass: 65536 x 2048 192 us and 155, 32768 x 8192 303 and 307.
_STAYING = range(8192, (_RING + _HELD) * _THREADS * ACCESS_BYTES + 1)


def cross_entropy_with_gradient(
    plan: str, logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[torch.Tensor, torch.Tensor]:
    loss = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    grad = torch.empty_like(logits, memory_format=torch.contiguous_format)
    if grad.numel():
        count = reduced("count", None, target, ignore_index) if reduction == "mean" else None
        work = (*logits.shape, logits.stride(0), logits.dtype, ignore_index, label_smoothing)
        stays = plan == "staying" and logits.shape[1] * logits.dtype.itemsize in _STAYING
        launch = _staying(*work, multiprocessors(logits)) if stays else _two_pass(*work)
        launch(logits, target, count, loss, grad)
    return (loss if reduction == "none" else reduced(reduction, loss, target, ignore_index)), grad


@lru_cache(maxsize=4096)
def _two_pass(rows: int, n: int, step: int, dtype: torch.dtype, ignored: int, smoothing: float) -> Bound:
    width = ACCESS_BYTES // dtype.itemsize
    group = group_of(n, width * _UNROLL)
    side = max(1, 128 // group) if group <= 32 else 1
    kernel = TWO_PASS.kernel(
        "cross_entropy_with_gradient_two_pass", _SIGNATURE, ELEMENT=ctype(dtype), WIDTH=width, GROUP=group, ROWS=side,
        UNROLL=_UNROLL, SMOOTHED=int(smoothing != 0),
    )  # fmt: skip
    return kernel.bind(cdiv(rows, side), (group, side), rows, n, step, ignored, smoothing)


@lru_cache(maxsize=4096)
def _staying(
    rows: int, n: int, step: int, dtype: torch.dtype, ignored: int, smoothing: float, processors: int
) -> Bound:
    width = ACCESS_BYTES // dtype.itemsize
    units = cdiv(n, width)
    blocks = next(b for b in (8, 4, 2, 1) if units <= (_RING + _HELD) * _THREADS // b)  # of a multiprocessor
    vectors = cdiv(units, _THREADS // blocks)
    batch = min(_BATCH, vectors)
    ring = min(_RING, cdiv(vectors, batch) * batch)
    group = cdiv(cdiv(units, vectors), 32) * 32
    kernel = SOURCE.kernel(
        "cross_entropy_with_gradient_staying", _SIGNATURE, ELEMENT=ctype(dtype), WIDTH=width, GROUP=group, RING=ring,
        HELD=max(0, vectors - ring), BATCH=batch, MIN_BLOCKS=blocks, SMOOTHED=int(smoothing != 0),
    )  # fmt: skip
    room = ring * group * ACCESS_BYTES
    return kernel.bind(min(rows, processors * blocks), group, rows, n, step, ignored, smoothing, shared=room)


_LAYOUT = {"logits": "last", "target": "contiguous"}
_PEELED = {"BatchInvariant": "a row that starts misaligned is peeled, and its columns fall to other threads"}
VARIANTS = {
    "two_pass": Implementation(
        partial(cross_entropy_with_gradient, "two_pass"),
        "the second read of a row comes from L2",
        layout=_LAYOUT,
        exempt=_PEELED,
    ),
    "staying": Implementation(
        partial(cross_entropy_with_gradient, "staying"),
        "one read as far as shared memory and registers hold the row, the next one on its way; else the second from L2",
        (Capability((9, 0)),),
        _LAYOUT,
        exempt=_PEELED,
    ),
}
