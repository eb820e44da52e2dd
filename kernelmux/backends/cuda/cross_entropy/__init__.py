"""Cross entropy on CUDA: log(sum(exp(x))) of each row in one read, and its loss from the target."""

import torch

from kernelmux.backends.cuda._families.elementwise import ACCESS_BYTES
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, cdiv, ctype
from kernelmux.backends.cuda.cross_entropy._targets import reduced
from kernelmux.registry.backend import Implementation
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__)
# Accesses of a thread in flight. H200, 8192 x 128256 in bf16, in one run: 481 us by plain loads, 495 by streaming ones,
# and 501 if the halves of a word are then converted one by one. With 32 registers four blocks fit a multiprocessor.
_UNROLL = 2


def cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[torch.Tensor, torch.Tensor]:
    lse = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    loss = torch.empty_like(lse)
    if lse.numel():
        _online(*logits.shape, logits.stride(0), logits.dtype, ignore_index, label_smoothing)(logits, target, lse, loss)
    return (loss if reduction == "none" else reduced(reduction, loss, target, ignore_index)), lse


@remembered
def _online(rows: int, n: int, step: int, dtype: torch.dtype, ignored: int, smoothing: float) -> BoundLaunch:
    width = ACCESS_BYTES // dtype.itemsize
    group = group_of(n, width * _UNROLL)
    side = max(1, 128 // group) if group <= 32 else 1
    kernel = SOURCE.kernel(
        "cross_entropy_online", "logits* target* lse* loss* rows:i64 n:i32 step:i64 ignored:i64 smoothing:f32",
        ELEMENT=ctype(dtype), WIDTH=width, GROUP=group, ROWS=side, UNROLL=_UNROLL, SMOOTHED=int(smoothing != 0),
    )  # fmt: skip
    return kernel.bind(cdiv(rows, side), (group, side), rows, n, step, ignored, smoothing)


def group_of(n: int, each: int, most: int = 512) -> int:
    """Threads that share a row of n elements, if each takes so many of them at a time: a power of two, 4 or more."""
    return min(most, max(4, 1 << (cdiv(n, each) - 1).bit_length()))


def aligned(logits: torch.Tensor) -> bool:
    """Whether all rows of logits and of a new tensor like them are whole accesses that start aligned."""
    size = logits.dtype.itemsize
    starts = (logits.data_ptr(), logits.stride(0) * size, logits.shape[1] * size)
    return all(start % ACCESS_BYTES == 0 for start in starts)


VARIANTS = {
    "online": Implementation(
        cross_entropy,
        "a running maximum and sum per thread: the logits are read once",
        layout={"logits": "last", "target": "contiguous"},
        exempt={"BatchInvariant": "a row that starts misaligned is peeled, and its columns fall to other threads"},
    )
}
