"""Cross entropy and its gradient on CUDA, in one kernel.

two_pass  a row is read twice, the second time from L2
staying   the row stays in shared memory and registers, and the next one takes its place meanwhile: one read, one write;
          rows that do not fit in pieces, whose gradients follow while L2 still has them; short ones as two_pass
clusters  a row stays in the registers of a block, a long one in those of a cluster, in the order of memory; longer ones in
          pieces as above, short ones as two_pass

Few long rows are in pieces: one launch looks at them, the next writes (staying, clusters).
"""

from functools import partial

import torch

from kernelmux.backends.cuda._families.elementwise import ACCESS_BYTES
from kernelmux.backends.cuda._families.rows import peeled
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, card, cdiv, ctype
from kernelmux.backends.cuda.cross_entropy import aligned, group_of
from kernelmux.backends.cuda.cross_entropy._pieces import MOST_PIECES, PIECE, VECTORS, LossInPieces, launches, pieces_of
from kernelmux.backends.cuda.cross_entropy._targets import reduced
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtLeast, Capability, Either, UnevenRows
from kernelmux.registry.util.cards import Card, remembered

SOURCE = Source(__file__)
TWO_PASS = Source(__file__, "cross_entropy_with_gradient_two_pass.cu")
FOLLOWING = Source(__file__, "cross_entropy_with_gradient_following.cu")
CLUSTERS = Source(__file__, "cross_entropy_with_gradient_clusters.cu")
PIECES = Source(__file__, "cross_entropy_with_gradient_pieces.cu")
_SIGNATURE = "logits* target* counted* loss* grad* rows:i64 n:i32 step:i64 ignored:i64 smoothing:f32"
_FOLLOWING_SIGNATURE = _SIGNATURE.replace("loss*", "words* loss*") + " pieces:i32 lag:i32"
_UNROLL = 4  # accesses of a thread in flight, where a row is read twice
_RING, _HELD, _BATCH = 12, 4, 4  # vectors of a thread: in shared memory, in registers, asked for together
_THREADS = 1024  # of a multiprocessor: with 64 registers each
_OTHER_SHARED = 1280  # bytes of a block beside the ring: its sums, and 1 KiB of the system
# Bytes of a row that stays at least. H200, bf16, staying and two_pass: 65536 x 2048 192 us and 155, 32768 x 8192 303, 307.
_SHORTEST = 8192

# Blocks of a multiprocessor that have pieces which wait for others. H200, bf16, us: 8192 x 151936 1422, 1582 by two passes;
# 8192 x 128256 1167, as rows that stay 1135.
_BLOCKS = 4
# Bytes above which few rows are in pieces, while L2 holds them. H200, bf16, us so and by clusters: 8 x 32000 6.7 and 9.2,
# 16 x 20000 6.9 and 8.5, 100 x 32000 12.1 and 12.3, 132 x 50257 16.5 and 18.7, 64 x 128256 17.9 and 18.9, 100 x 128256
# 24.1 and 25.9; 256 x 32000 19.1 and 18.0.
_LONG = 2**15
# In clusters: vectors of a thread, its threads while more blocks may share a row, and at most. H200, in bf16, in one run:
# 8192 x 128256 takes 1018 us, 1132 as rows that stay, 1062 by 512 threads; 8192 x 151936 takes 1307 us, 1589 in pieces.
# Rows of which a multiprocessor would keep one or two, and of which it has room for parts of two.
_SHARED_VECTORS, _SHARED_THREADS, _MOST_SHARED = 8, 256, 512
_SHARED = range(2**16 + 1, 8 * _MOST_SHARED * _SHARED_VECTORS * ACCESS_BYTES + 1)  # bytes of a row
# In one block: vectors of a thread, the first with which a multiprocessor has nearly all threads; fewer of short rows.
# H200, bf16, us as before (the faster of staying and two_pass) and by 4, 6 and 8 vectors: 60000 x 1500 124.1, 97.6;
# 40000 x 2048 90.5, 82.3, 84.4; 18930 x 4224 107.9, 85.8, 80.7, 81.9; 12000 x 8192 112.6, 102.2, 99.2, 99.8; 8192 x 16384
# 152.8, 142.3, 149.0, 134.9; 4096 x 24000 119.7, -, 100.2, 102.3; 4096 x 32000 147.8, -, -, 131.9.
_OF_BLOCK = range(2**11 + 1, 2**16 + 1)  # bytes of a row
_FEW_VECTORS, _SHORT, _VECTORS_OF_BLOCK, _NEARLY_ALL = 4, 6144, (6, 8), 896

# Rows so few that each block counts itself how many count, and that what adds the losses up starts early; a launch for the
# count and one that starts late cost more. H200, bf16, us so and with these launches: 5 x 231360 10.9 and 12.0, 16 x 128256
# 11.5 and 13.2, 100 x 32000 12.9 and 13.8, 256 x 32000 17.8 and 17.4.
_FEW = 256


def cross_entropy_with_gradient(
    plan: str, logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, mean = logits.shape[0], reduction == "mean"
    alone, few = rows == 1 and reduction != "none", rows <= _FEW
    loss = torch.empty(() if alone else rows, dtype=torch.float32, device=logits.device)
    grad = torch.empty_like(logits, memory_format=torch.contiguous_format)
    if grad.numel():
        work = (*logits.shape, logits.stride(0), logits.dtype, ignore_index, label_smoothing)
        size, on = logits.shape[1] * logits.dtype.itemsize, card(logits)
        if plan != "two_pass" and _few_and_long(rows, size, on):
            total = None if reduction == "none" else loss.new_empty(())
            _in_pieces(*work, aligned(logits), reduction)(logits, target, loss, total, grad)
            return (loss if total is None else total), grad
        count = reduced("count", None, target, ignore_index) if mean and not few else None
        tensors, work = (logits, target, count, loss, grad), (*work, few, few and mean)
        if plan == "clusters" and (size in _OF_BLOCK or size in _SHARED):
            _clusters(*work, aligned(logits))(*tensors)
        elif plan == "two_pass" or size < _SHORTEST:
            _two_pass(*work)(*tensors)
        elif size <= _longest(on):
            _staying(*work, on.processors, _ring(on))(*tensors)
        else:
            words, clear, launch = _following(*work, aligned(logits), on.processors)
            room = torch.empty(words, dtype=torch.int64, device=logits.device)
            clear(room)
            launch(logits, target, count, room, loss, grad)
    return (loss if alone or reduction == "none" else reduced(reduction, loss, target, ignore_index)), grad


def _few_and_long(rows: int, size: int, on: Card) -> bool:
    """Whether rows of `size` bytes are long, of each multiprocessor at most one, and L2 has room for all."""
    few = rows <= min(_FEW, on.processors) and 2 * rows * size <= on.l2
    return few and size > _LONG and pieces_of(size) <= MOST_PIECES


@remembered
def _in_pieces(
    rows: int, n: int, step: int, dtype: torch.dtype, ignored: int, smoothing: float, aligned: bool, reduction: str
) -> LossInPieces:
    added = reduction != "none"
    return launches(
        PIECES, "cross_entropy_with_gradient_pieces", "loss* total* grad*", added + rows * pieces_of(n * dtype.itemsize),
        PIECE, rows, n, step, dtype, ignored, smoothing, aligned, FEW=1, MEAN=int(reduction == "mean"), ADDED=int(added),
    )  # fmt: skip


@remembered
def _two_pass(
    rows: int, n: int, step: int, dtype: torch.dtype, ignored: int, smoothing: float, few: bool, mean: bool
) -> BoundLaunch:
    width = ACCESS_BYTES // dtype.itemsize
    group = group_of(n, width * _UNROLL)
    side = max(1, 128 // group) if group <= 32 else 1
    kernel = TWO_PASS.kernel(
        "cross_entropy_with_gradient_two_pass", _SIGNATURE, ELEMENT=ctype(dtype), WIDTH=width, GROUP=group, ROWS=side,
        UNROLL=_UNROLL, SMOOTHED=int(smoothing != 0), FEW=int(few), MEAN=int(mean),
    )  # fmt: skip
    return kernel.bind(cdiv(rows, side), (group, side), rows, n, step, ignored, smoothing)


def _ring(on: Card) -> int:
    """Vectors of a thread in shared memory at most: whole batches, of 1,024 threads in up to eight blocks."""
    room = (on.shared_per_processor - 8 * _OTHER_SHARED) // (_THREADS * ACCESS_BYTES)
    return min(_RING, room // _BATCH * _BATCH)


def _longest(on: Card) -> int:
    """Bytes of the longest row that stays."""
    return (_ring(on) + _HELD) * _THREADS * ACCESS_BYTES


@remembered
def _staying(
    rows: int, n: int, step: int, dtype: torch.dtype, ignored: int, smoothing: float, few: bool, mean: bool,
    processors: int, most: int,
) -> BoundLaunch:  # fmt: skip
    """most: vectors of a thread in shared memory."""
    width = ACCESS_BYTES // dtype.itemsize
    units = cdiv(n, width)
    blocks = next(b for b in (8, 4, 2, 1) if units <= (most + _HELD) * _THREADS // b)  # of a multiprocessor
    vectors = cdiv(units, _THREADS // blocks)
    batch = min(_BATCH, vectors)
    ring = min(most, cdiv(vectors, batch) * batch)
    group = cdiv(cdiv(units, vectors), 32) * 32
    kernel = SOURCE.kernel(
        "cross_entropy_with_gradient_staying", _SIGNATURE, ELEMENT=ctype(dtype), WIDTH=width, GROUP=group, RING=ring,
        HELD=max(0, vectors - ring), BATCH=batch, MIN_BLOCKS=blocks, SMOOTHED=int(smoothing != 0), FEW=int(few),
        MEAN=int(mean),
    )  # fmt: skip
    room = ring * group * ACCESS_BYTES
    return kernel.bind(min(rows, processors * blocks), group, rows, n, step, ignored, smoothing, shared=room)


@remembered
def _following(
    rows: int, n: int, step: int, dtype: torch.dtype, ignored: int, smoothing: float, few: bool, mean: bool, aligned: bool,
    processors: int,
) -> tuple[int, BoundLaunch, BoundLaunch]:  # fmt: skip
    """Words that the launches share, one that clears them and one that does the work."""
    width, smoothed = ACCESS_BYTES // dtype.itemsize, int(smoothing != 0)
    pieces = pieces_of(n * dtype.itemsize)
    lag = min(rows, cdiv(3 * processors * _BLOCKS, 2 * pieces))  # rows: 1.5 times what is under way
    words = rows * pieces * (1 + smoothed)
    defines = {
        "ELEMENT": ctype(dtype), "WIDTH": width, "GROUP": PIECE, "UNROLL": VECTORS, "MIN_BLOCKS": _BLOCKS,
        "SMOOTHED": smoothed, "ALIGNED": int(aligned), "FEW": int(few), "MEAN": int(mean),
    }  # fmt: skip
    clear = FOLLOWING.kernel("cross_entropy_with_gradient_clear", "words* count:i64", **defines)
    kernel = FOLLOWING.kernel("cross_entropy_with_gradient_following", _FOLLOWING_SIGNATURE, **defines)
    work = kernel.bind((rows + lag) * pieces, PIECE, rows, n, step, ignored, smoothing, pieces, lag)
    return words, clear.bind(cdiv(words, 256), 256, words), work


def _shares(size: int) -> tuple[int, int, int]:
    """Blocks of the cluster that holds a row of `size` bytes, threads of each, and vectors of a thread."""
    if size in _OF_BLOCK:
        wanted = (_FEW_VECTORS,) if size <= _SHORT else _VECTORS_OF_BLOCK
        groups = {vectors: cdiv(size, 32 * vectors * ACCESS_BYTES) * 32 for vectors in wanted}
        fits = (v for v, group in groups.items() if group <= _MOST_SHARED and _THREADS // group * group >= _NEARLY_ALL)
        vectors = next(fits, wanted[-1])
        return 1, groups[vectors], vectors
    held = _SHARED_VECTORS * ACCESS_BYTES  # bytes of a thread
    cluster = next((c for c in (2, 4) if size <= c * _SHARED_THREADS * held), 8)
    return cluster, cdiv(size, 32 * cluster * held) * 32, _SHARED_VECTORS


@remembered
def _clusters(
    rows: int,
    n: int,
    step: int,
    dtype: torch.dtype,
    ignored: int,
    smoothing: float,
    few: bool,
    mean: bool,
    aligned: bool,
) -> BoundLaunch:
    size, width = n * dtype.itemsize, ACCESS_BYTES // dtype.itemsize
    cluster, group, vectors = _shares(size)
    kernel = CLUSTERS.kernel(
        "cross_entropy_with_gradient_clusters", _SIGNATURE, ELEMENT=ctype(dtype), WIDTH=width, GROUP=group,
        UNROLL=vectors, CLUSTER=cluster, MIN_BLOCKS=max(1, _THREADS // group), SMOOTHED=int(smoothing != 0),
        ALIGNED=int(aligned), FEW=int(few), MEAN=int(mean),
    )  # fmt: skip
    return kernel.bind(rows * cluster, group, rows, n, step, ignored, smoothing)


_LAYOUT = {"logits": "last", "target": "contiguous"}
_PEELED = peeled("logits")
_UNLIKE_FEW = {"BatchInvariant": Either(UnevenRows("logits"), AtLeast("V", _LONG // torch.float32.itemsize + 1))}
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
        (Capability((8, 0)),),
        _LAYOUT,
        exempt=_UNLIKE_FEW,
    ),
    "clusters": Implementation(
        partial(cross_entropy_with_gradient, "clusters"),
        "a row in the registers of a block or of a cluster of blocks, in the order of memory",
        (Capability((9, 0)),),
        _LAYOUT,
        exempt=_UNLIKE_FEW,
    ),
}
