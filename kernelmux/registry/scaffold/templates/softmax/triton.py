"""newop: one program per row, which reads it block by block; later reads of a row come from the caches."""

import math

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch import Launch, like, plan
from kernelmux.backends.triton._rows import next_power
from kernelmux.registry.backend import Implementation

LONGEST = 4096  # elements of a block


@triton.jit
def _load(x_ptr, columns, n, inner, other):
    return tl.load(x_ptr + columns * inner, mask=columns < n, other=other).to(tl.float32)


@triton.jit
def rows_kernel(y_ptr, x_ptr, n, inner, BLOCK: tl.constexpr):
    """x, y: [outer, n, inner]; the elements of a row lie `inner` apart."""
    row = tl.program_id(0).to(tl.int64)
    start = row // inner * n * inner + row % inner
    lanes = tl.arange(0, BLOCK).to(tl.int64)

    # TODO(newop): what is known of a whole row; `other` stands beyond its end and must change nothing
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    for first in range(0, n, BLOCK):
        top = tl.maximum(top, _load(x_ptr + start, first + lanes, n, inner, -float("inf")))
    m = tl.max(top)

    terms = tl.zeros([BLOCK], tl.float32)
    for first in range(0, n, BLOCK):
        e = tl.exp(_load(x_ptr + start, first + lanes, n, inner, -float("inf")) - m)
        terms += tl.where(first + lanes < n, e, 0.0)
    total = tl.sum(terms)

    for first in range(0, n, BLOCK):
        columns = first + lanes
        x = _load(x_ptr + start, columns, n, inner, 0.0)
        y = tl.exp(x - m) / total  # TODO(newop): the result of an element
        tl.store(y_ptr + start + columns * inner, y.to(y_ptr.dtype.element_ty), mask=columns < n)


def rows(x: torch.Tensor, axis: int) -> torch.Tensor:
    y = like(x)
    if y.numel():
        n, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
        _launch(x.numel() // n, n, inner)(y, x)
    return y


@plan
def _launch(count: int, n: int, inner: int) -> Launch:
    block = min(next_power(n), LONGEST)
    return Launch(rows_kernel, (count,), n, inner, BLOCK=block, num_warps=max(1, block // 512), enable_fp_fusion=False)


VARIANTS = {"rows": Implementation(fn=rows, idea="one program per row, block by block", layout={"x": "contiguous"})}
