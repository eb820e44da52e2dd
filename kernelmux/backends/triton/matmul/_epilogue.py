"""The end of a product: y = activation(sum + bias[n]) from fp32 sums, each output rounded once.

With an activation its argument z = sum + bias[n] is stored as well, for the backward. Both are compile-time values:
without them a kernel has no instruction for them, and None in place of their pointers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._families.activations import gelu_erf, silu_value
from kernelmux.backends.triton._launch.dependent import follow_previous
from kernelmux.backends.triton._launch.launch import Launch, cdiv

PARTS_BLOCK = 1024


class EpilogueTerms(NamedTuple):
    """What of an epilogue a kernel is compiled for: whether there is a bias, and which activation."""

    bias: bool = False
    activation: str = "none"

    @property
    def plain(self) -> bool:
        return not self.bias and self.activation == "none"

    @property
    def missing(self) -> tuple[None, ...]:
        """What stands for the pointers to bias and z where there is neither."""
        return (None, None) if self.plain else ()

    @property
    def meta(self) -> dict[str, Any]:
        """The constexprs of a kernel."""
        return {"BIAS": self.bias, "ACTIVATION": self.activation}


class EpilogueTensors(NamedTuple):
    """An ending with its tensors: bias [N], and z [M, N] for the argument of an activation."""

    ending: EpilogueTerms = EpilogueTerms()
    bias: torch.Tensor | None = None
    z: torch.Tensor | None = None

    def arguments(self, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What a launch gets behind c, a and b; c stands for a tensor that there is not."""
        if self.ending.plain:
            return ()
        return c if self.bias is None else self.bias, c if self.z is None else self.z


PLAIN = EpilogueTensors()


class WholeTensor:
    """Stands among the maps of a launch for a tensor that goes in as it is."""

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """The argument for x."""
        return x


@triton.jit
def relu(x):
    return tl.where(x < 0, 0.0, x)  # a NaN stays


@triton.jit
def biased(acc, bias_ptr, offs_n, N, BIAS: tl.constexpr, TURNED: tl.constexpr = False):
    """acc [BLOCK_M, BLOCK_N], or turned its transpose, and the bias of the columns offs_n [BLOCK_N] of the product."""
    if BIAS:
        bias = tl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(tl.float32)
        acc += bias[:, None] if TURNED else bias[None, :]
    return acc


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    """The activation of fp32 values."""
    if ACTIVATION == "gelu":
        x = gelu_erf(x)
    elif ACTIVATION == "silu":
        x = silu_value(x)
    elif ACTIVATION == "relu":
        x = relu(x)
    return x


@triton.jit
def end_parts_kernel(
    parts_ptr, c_ptr, bias_ptr, z_ptr, size, N,
    PARTS: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, FOLLOWS: tl.constexpr,
):  # fmt: skip
    """Ends a product whose K was split: adds parts [PARTS, M, N] in order, then as the kernels of a whole K do.

    FOLLOWS: the kernel before lets this one start before its end, for which this one waits."""
    follow_previous(FOLLOWS)
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offs < size
    acc = tl.zeros([BLOCK], tl.float32)
    for _ in tl.static_range(PARTS):
        acc += tl.load(parts_ptr + offs, mask=inside, other=0.0)
        parts_ptr += size
    if BIAS:
        acc += tl.load(bias_ptr + offs % N, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION != "none":
        tl.store(z_ptr + offs, acc.to(z_ptr.dtype.element_ty), mask=inside)
    tl.store(c_ptr + offs, activated(acc, ACTIVATION).to(c_ptr.dtype.element_ty), mask=inside)


def end_parts(end: EpilogueTerms, parts: int, M: int, N: int, follows: bool = False) -> Launch:
    """The launch of `end_parts_kernel`, of parts, c and the tensors of an epilogue."""
    grid, meta = (cdiv(M * N, PARTS_BLOCK),), {**end.meta, "PARTS": parts, "BLOCK": PARTS_BLOCK, "FOLLOWS": follows}
    return Launch(end_parts_kernel, grid, M * N, N, launch_pdl=follows, **meta)
