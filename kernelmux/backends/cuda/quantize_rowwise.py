"""Rows in 8 bits with a scale each, on CUDA.

looped     the largest magnitude in one pass, the quotients in a second that reads from L2 where it can
cluster    the row stays in the registers of several blocks between the two: one read
registers  the same in one block
"""

from collections.abc import Callable
from functools import partial

import torch

from kernelmux.backends.cuda._families.rows import CLUSTERS, SHORT, accesses, cluster_plan, loop_over_row, row_plan
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Kernel, Source, cdiv, ctype
from kernelmux.registry import dtypes
from kernelmux.registry.backend import Implementation
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__)
FORMATS = {"int8": "Int8", "e4m3": "E4m3", "e5m2": "E5m2"}
Deal = Callable[[Callable[..., Kernel], int, int, torch.dtype, int, bool], BoundLaunch]


def quantize_rowwise(deal: Deal, x: torch.Tensor, format: str) -> tuple[torch.Tensor, torch.Tensor]:
    q = torch.empty(x.shape, dtype=dtypes.parse(format), device=x.device)
    if x.numel() == 0:
        return q, x.new_zeros(len(x), dtype=torch.float32)
    scale = x.new_empty(len(x), dtype=torch.float32)
    _launch(deal, *x.shape, x.dtype, *accesses((x,), x.shape[1], 0), format)(x, q, scale)
    return q, scale


@remembered
def _launch(deal: Deal, rows: int, n: int, dtype: torch.dtype, width: int, peeled: bool, format: str) -> BoundLaunch:
    def kernel(way: str, walk: str, **defines: object) -> Kernel:
        entry = f"quantize_rowwise_{way}"
        fixed = {"ENTRY": entry, "WALK": walk, "ELEMENT": ctype(dtype), "FORMAT": FORMATS[format]}
        return SOURCE.kernel(entry, "x* q* scale* rows:i64 n:i32", **fixed, **defines)

    return deal(kernel, rows, n, dtype, width, peeled)


def _registers(
    kernel: Callable[..., Kernel], rows: int, n: int, dtype: torch.dtype, width: int, peeled: bool
) -> BoundLaunch:
    plan = row_plan(n, dtype.itemsize, width, peeled=peeled)
    return kernel("registers", "resident", **plan.defines).bind(cdiv(rows, plan.rows), plan.block, rows, n)


def _cluster(
    kernel: Callable[..., Kernel], rows: int, n: int, dtype: torch.dtype, width: int, peeled: bool
) -> BoundLaunch:
    plan = cluster_plan(n, dtype.itemsize, width, peeled=peeled)
    return kernel("cluster", "resident", **plan.defines).bind(rows * plan.cluster, plan.block, rows, n)


def _looped(
    kernel: Callable[..., Kernel], rows: int, n: int, dtype: torch.dtype, width: int, peeled: bool
) -> BoundLaunch:
    block, unroll = loop_over_row(cdiv(n, width))
    defines = {"WIDTH": width, "GROUP": block, "UNROLL": unroll, **({"PEELED": 1} if peeled else {})}
    return kernel("looped", "looped", **defines).bind(rows, (block, 1), rows, n)


_LAYOUT = {"x": "contiguous"}
VARIANTS = {
    "looped": Implementation(partial(quantize_rowwise, _looped), "two reads, 16 bytes per access", layout=_LAYOUT),
    "cluster": Implementation(
        partial(quantize_rowwise, _cluster), "one read: the row stays in registers of several blocks", CLUSTERS, _LAYOUT
    ),
    "registers": Implementation(
        partial(quantize_rowwise, _registers), "one read: the row stays in registers", SHORT, _LAYOUT
    ),
}
