"""Cross entropy on CUDA: log(sum(exp(x))) of each row in one read, and its loss from the target."""

import torch

from kernelmux.backends.cuda._families.elementwise import ACCESS_BYTES
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, card, cdiv, ctype, next_power
from kernelmux.backends.cuda.cross_entropy._pieces import in_pieces
from kernelmux.backends.cuda.cross_entropy._targets import reduced
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtLeast, Either, UnevenRows
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__)
# Accesses of a thread in flight. H200, 8192 x 128256 in bf16, in one run: 481 us by plain loads, 495 by streaming ones,
# and 501 if the halves of a word are then converted one by one. With 32 registers four blocks fit a multiprocessor.
_UNROLL = 2
# Of no more rows than multiprocessors a cluster has a row, so that there are up to four blocks on each: bytes of a block at
# least, of up to half as many rows (else twice as many), and accesses in flight. H200, bf16, us by one block and by blocks
# of 64, 32 and 16 KiB: 6 x 256000 27.9, 9.8, 7.6, 7.6; 16 x 128256 16.7, 10.0, 7.9, 7.6; 64 x 128256 17.9, 11.7, 11.5,
# 12.2; 6 x 50257 9.3, 8.4, 6.8, 5.7. But 8192 x 128256 479, 478, 530, 658.
_SHARE, _SHARE_UNROLL, _MOST_BLOCKS = 16384, 4, 4


def cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = logits.shape[0]
    lse = torch.empty(rows, dtype=torch.float32, device=logits.device)
    # Of one row, and in pieces, the loss comes out as it is wanted.
    work = (*logits.shape, logits.stride(0), logits.dtype, ignore_index, label_smoothing)
    on = card(logits)
    if rows and (pieces := in_pieces(*work, aligned(logits), reduction, on.processors)):
        loss = lse.new_empty(lse.shape if reduction == "none" else ())
        pieces(logits, target, lse, loss)
        return loss, lse
    alone = rows == 1 and reduction != "none"
    loss = lse.new_empty(() if alone else lse.shape)
    if rows:
        room = _MOST_BLOCKS * on.processors if on.capability >= (9, 0) else 0
        _online(*work, room, alone and reduction == "mean")(logits, target, lse, loss)
    return (loss if alone or reduction == "none" else reduced(reduction, loss, target, ignore_index)), lse


@remembered
def _online(
    rows: int, n: int, step: int, dtype: torch.dtype, ignored: int, smoothing: float, room: int,
    mean_of_one: bool = False,
) -> BoundLaunch:  # fmt: skip
    """room: for so many blocks, where the GPU has clusters."""
    width = ACCESS_BYTES // dtype.itemsize
    least = _SHARE * cdiv(2 * _MOST_BLOCKS * rows, room) if room else 0  # bytes of a block
    most = min(8, n * dtype.itemsize // least, room // rows) if _MOST_BLOCKS * rows <= room else 1
    cluster = 1 << max(0, most.bit_length() - 1)
    flight = _UNROLL if cluster == 1 else _SHARE_UNROLL
    group = group_of(cdiv(n, cluster), width * flight)
    side = max(1, 128 // group) if group <= 32 else 1
    kernel = SOURCE.kernel(
        "cross_entropy_online", "logits* target* lse* loss* rows:i64 n:i32 step:i64 ignored:i64 smoothing:f32",
        ELEMENT=ctype(dtype), WIDTH=width, GROUP=group, ROWS=side, UNROLL=flight, CLUSTER=cluster,
        SMOOTHED=int(smoothing != 0), MEAN_OF_ONE=int(mean_of_one),
    )  # fmt: skip
    return kernel.bind(cdiv(rows, side) * cluster, (group, side), rows, n, step, ignored, smoothing)


def group_of(n: int, each: int, most: int = 512) -> int:
    """Threads that share a row of n elements, if each takes so many of them at a time: a power of two, 4 or more."""
    return min(most, max(4, next_power(cdiv(n, each))))


def aligned(logits: torch.Tensor) -> bool:
    """Whether all rows of logits and of a new tensor like them are whole accesses that start aligned."""
    size = logits.dtype.itemsize
    starts = (logits.data_ptr(), logits.stride(0) * size, logits.shape[1] * size)
    return all(start % ACCESS_BYTES == 0 for start in starts)


VARIANTS = {
    "online": Implementation(
        cross_entropy,
        "a running maximum and sum per thread: the logits are read once; few long rows by clusters or in pieces",
        layout={"logits": "last", "target": "contiguous"},
        # Of few rows of 2 * _SHARE bytes or more each has a cluster, or several blocks.
        exempt={"BatchInvariant": Either(UnevenRows("logits"), AtLeast("V", 2 * _SHARE // torch.float32.itemsize))},
    )
}
