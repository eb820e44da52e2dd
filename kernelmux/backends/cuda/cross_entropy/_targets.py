"""What rows with a target class add up to: the losses of all of them, or how many count."""

import torch

from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, cdiv, next_power
from kernelmux.registry.util.cards import remembered

_SOURCE = Source(__file__, "cross_entropy_sums.cu")
_BLOCK = 512  # threads at most; a warp at least
_SHARE = 16384  # rows of a block: below it a second launch would only take longer
_MOST_BLOCKS = 256


def reduced(wanted: str, loss: torch.Tensor | None, target: torch.Tensor, ignored: int) -> torch.Tensor:
    """The "mean" or "sum" of the losses [M], or the "count" of targets [M] that are not ignored: one fp32 number."""
    out = torch.empty((), dtype=torch.float32, device=target.device)
    blocks, first, last = _sums(wanted, target.shape[0], ignored)
    if last is None:
        first(loss, target, out)
    else:
        parts = out.new_empty((blocks, 2))
        first(loss, target, parts)
        last(parts, out)
    return out


@remembered
def _sums(wanted: str, rows: int, ignored: int) -> tuple[int, BoundLaunch, BoundLaunch | None]:
    blocks = max(1, min(_MOST_BLOCKS, cdiv(rows, _SHARE)))
    block = min(_BLOCK, max(32, next_power(rows)))
    defines = {"BLOCK": block, "WANTED": wanted.upper(), "SEVERAL": int(blocks > 1), "FOLLOWS": 1}
    kernel = _SOURCE.kernel("cross_entropy_sums", "loss* target* out* rows:i64 ignored:i64 share:i64", **defines)
    first = kernel.bind(blocks, block, rows, ignored, cdiv(rows, blocks), follows=True)
    if blocks == 1:
        return 1, first, None
    total = _SOURCE.kernel("cross_entropy_total", "parts* out* n:i32", **defines)
    return blocks, first, total.bind(1, block, blocks, follows=True)
