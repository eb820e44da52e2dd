"""Cross entropy and its gradient on CUDA, in one kernel.

two_pass  a row is read twice, the second time from L2
staying   the row stays in the shared memory of up to eight blocks, and the next ones are on their way: one read, one write
"""

from functools import lru_cache, partial

import torch

from kernelmux.backends.cuda._elementwise import ACCESS_BYTES
from kernelmux.backends.cuda._runtime import Bound, Source, cdiv, ctype, multiprocessors
from kernelmux.backends.cuda._targets import reduced
from kernelmux.backends.cuda.cross_entropy import group_of
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtLeast, AtMost, Capability

SOURCE = Source(__file__)
TWO_PASS = Source(__file__, "cross_entropy_with_gradient_two_pass.cu")
_SIGNATURE = "logits* target* counted* loss* grad* rows:i64 n:i32 step:i64 ignored:i64 smoothing:f32"
_UNROLL = 4  # accesses of a thread in flight, where a row is read twice
_PART = 65536  # bytes of a row in a block: three rows fit the shared memory of a multiprocessor
_ROOM = 227 * 1024  # bytes of shared memory of a multiprocessor
_STAGES = 3
_VECTORS = 4


def cross_entropy_with_gradient(
    plan: str, logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[torch.Tensor, torch.Tensor]:
    loss = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    grad = torch.empty_like(logits, memory_format=torch.contiguous_format)
    if grad.numel():
        count = reduced("count", None, target, ignore_index) if reduction == "mean" else None
        work = (*logits.shape, logits.stride(0), logits.dtype, ignore_index, label_smoothing)
        launch = _two_pass(*work) if plan == "two_pass" else _staying(*work, multiprocessors(logits))
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
    cluster = max(1, 1 << (cdiv(units * ACCESS_BYTES, _PART) - 1).bit_length())
    share = cdiv(units, cluster)
    vectors = min(_VECTORS, cdiv(share, 128))
    group = cdiv(cdiv(share, vectors), 32) * 32
    ring = _STAGES * vectors * group * ACCESS_BYTES
    blocks = max(1, min(1024 // group, _ROOM // (ring + 2048)))  # of a multiprocessor
    # A cluster lies within one of the parts of the GPU, which have 16 or 18 multiprocessors: of 132, clusters of 4 have 128.
    clusters = processors * blocks // cluster if cluster == 1 else processors // (4 * cluster) * 4 * blocks
    kernel = SOURCE.kernel(
        "cross_entropy_with_gradient_staying", _SIGNATURE, ELEMENT=ctype(dtype), WIDTH=width, GROUP=group,
        VECTORS=vectors, STAGES=_STAGES, CLUSTER=cluster, MIN_BLOCKS=blocks, SMOOTHED=int(smoothing != 0),
    )  # fmt: skip
    return kernel.bind(min(rows, clusters) * cluster, group, rows, n, step, ignored, smoothing, shared=ring)


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
        "one read: the row stays in the shared memory of a cluster, the next ones arrive meanwhile",
        (Capability((9, 0)), AtLeast("V", 2048), AtMost("V", 131072)),
        _LAYOUT,
        exempt=_PEELED,
    ),
}
