"""Cross entropy and its gradient on CUDA, in one kernel.

two_pass  a row is read twice, the second time from L2
staying   the row stays in shared memory and registers, and the next one takes its place meanwhile: one read, one write
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
_THREADS = 1024  # of a multiprocessor: with 64 registers each
_RING, _BATCH = 14, 2  # vectors of a thread: in shared memory, asked for together
_EASY = 8  # of them in a row, so that the ring leads by 6; with more than that two blocks share a row
_STAYING = range(2048, 2 * (_RING - _BATCH) * _THREADS * ACCESS_BYTES + 1)  # bytes of a row


def cross_entropy_with_gradient(
    plan: str, logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[torch.Tensor, torch.Tensor]:
    loss = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    grad = torch.empty_like(logits, memory_format=torch.contiguous_format)
    if grad.numel():
        count = reduced("count", None, target, ignore_index) if reduction == "mean" else None
        work = (*logits.shape, logits.stride(0), logits.dtype, ignore_index, label_smoothing)
        stays = plan == "staying" and logits.shape[1] * logits.dtype.itemsize in _STAYING
        launch = _staying(*work, _whole(logits), multiprocessors(logits)) if stays else _two_pass(*work)
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


def _whole(logits: torch.Tensor) -> bool:
    """Whether rows of logits and of a gradient consist of whole vectors."""
    size = logits.element_size()
    return not (
        logits.data_ptr() % ACCESS_BYTES or any(x * size % ACCESS_BYTES for x in (logits.stride(0), logits.shape[1]))
    )


@lru_cache(maxsize=4096)
def _staying(
    rows: int, n: int, step: int, dtype: torch.dtype, ignored: int, smoothing: float, whole: bool, processors: int
) -> Bound:
    width = ACCESS_BYTES // dtype.itemsize
    units = cdiv(n, width)
    blocks = next((b for b in (8, 4, 2, 1) if units <= _EASY * _THREADS // b), 1)  # of a multiprocessor
    cluster = 1 if units <= _EASY * _THREADS else 2
    vectors = cdiv(cdiv(units, cluster), _THREADS // blocks * _BATCH) * _BATCH
    lead = min(vectors, _RING - vectors)
    group = cdiv(cdiv(units, cluster * vectors), 32) * 32
    kernel = SOURCE.kernel(
        "cross_entropy_with_gradient_staying", _SIGNATURE, ELEMENT=ctype(dtype), WIDTH=width, GROUP=group, CLUSTER=cluster,
        VECTORS=vectors, LEAD=lead, BATCH=_BATCH, WHOLE=int(whole), MIN_BLOCKS=blocks, SMOOTHED=int(smoothing != 0),
    )  # fmt: skip
    clusters = min(rows, processors * blocks // cluster)
    room = (vectors + lead) * group * ACCESS_BYTES
    return kernel.bind(clusters * cluster, group, rows, n, step, ignored, smoothing, shared=room)


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
