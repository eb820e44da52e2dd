"""The gradient of attention on CUDA: the weights are computed again from lse, no M x N matrix reaches memory.

All rungs but the last take two walks over the weights, one for grad_k and grad_v, one for grad_q, so that each sum has
one owner and a fixed order. `fused` has one walk, as Dao, FlashAttention-2, 2023: blocks of keys add to grad_q one after
another; in `fused_atomic`, which runs only when it is named, as they come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kernelmux.backends.cuda._launch.layout import layout
from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, card, ctype
from kernelmux.backends.cuda.attention_backward._call import AttentionGradientCall, Walks
from kernelmux.backends.cuda.attention_backward._one_walk import Long, fused
from kernelmux.backends.cuda.attention_backward._two_walks import simple, tensor_cores, tf32x3, wgmma
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import (
    Aligned,
    AtMost,
    Capability,
    Condition,
    Dtypes,
    Either,
    Multiple,
    Multiplies,
)
from kernelmux.registry.spec.sliding_windows import Limit, mask_of
from kernelmux.registry.util.cards import remembered

T = torch.Tensor

_OFFSETS = Source(__file__, "attention_backward_offsets.cu")
_ROWS = 32  # of a block of it


@dataclass(frozen=True)
class AttentionBackwardPlan:
    """A kind of call, ready to run: first the offsets of the rows, then what computes the gradients."""

    call: AttentionGradientCall
    offsets: BoundLaunch
    walks: Walks

    def run(self, grad_out: T, *saved: T) -> tuple[T, ...]:
        q, k, v, y, lse = saved
        grads = tuple(x.new_empty(x.shape) for x in (q, k, v))
        B, H, _, _, _, _ = self.call.dims
        offsets = lse.new_empty((B * H, 2, self.call.pitch))
        strides = self.call.strides
        counters = offsets.new_empty(self.walks.counters, dtype=torch.int32) if self.walks.counters else None
        self.offsets(grad_out, y, lse, offsets, counters, strides[0], strides[4])
        self.walks.launch((grad_out, q, k, v), offsets, counters, *grads)
        return grads


def _variant(make: Callable[[AttentionGradientCall], Walks]) -> Callable[..., Any]:
    """An implementation from what turns a call into a launch of the kernels behind the offsets."""

    @remembered
    def plan(call: AttentionGradientCall) -> AttentionBackwardPlan:
        walks = make(call)
        return AttentionBackwardPlan(call, _offsets(call, walks.counters), walks)

    def run(
        grad_out: T, q: T, k: T, v: T, y: T, lse: T,
        causal: bool, scale: float, window: Limit, precision: str, ahead: Limit,
    ) -> tuple[T, ...]:  # fmt: skip
        if not q.numel() or not k.numel():
            return tuple(x.new_zeros(x.shape) for x in (q, k, v))
        mask = mask_of(q.shape[2], k.shape[2], causal, window, ahead)
        return plan(AttentionGradientCall(tuple(map(layout, (grad_out, q, k, v, y))), mask, scale, card(q))).run(
            grad_out, q, k, v, y, lse
        )

    return run


def _offsets(call: AttentionGradientCall, counters: int) -> BoundLaunch:
    grad_out, y = call.inputs[0], call.inputs[4]
    B, H, _, M, _, D = call.dims
    kernel = _OFFSETS.kernel(
        "attention_backward_offsets",
        "grad_out* y* lse* offsets* done* grad_step:struct y_step:struct heads:i32 M:i32 pitch:i32 counters:i32",
        ELEMENT=ctype(grad_out.dtype), HEAD_DIM=D, VECTOR=call.vector(grad_out, y),
    )  # fmt: skip
    return kernel.bind(B * H * call.pitch // _ROWS, 256, H, M, call.pitch, counters)


_LAYOUT = dict.fromkeys(("grad_out", "q", "k", "v", "y"), "last") | {"lse": "contiguous"}
_SIZES: tuple[Condition, ...] = (Multiple("D", 8), AtMost("D", 256))
_NARROW: tuple[Condition, ...] = (Multiple("D", 8), AtMost("D", 128))
_HALVES: Condition = Dtypes("q", torch.float16, torch.bfloat16)
# Tensor cores multiply tf32 far quicker than the FP32 pipes: in cards of data centres.
_FAST_TF32: Condition = Either(Capability((8, 0), below=(8, 6)), Capability((9, 0), below=(10, 0)))
_WIDEST_TF32: Condition = Either(AtMost("D", 240), _FAST_TF32)  # the others' shared memory has no room for more
_ON_HOPPER: tuple[Condition, ...] = (*map(Aligned, ("grad_out", "q", "k", "v")), Capability((9, 0), below=(10, 0)))

VARIANTS = {
    "simple": Implementation(
        _variant(simple),
        "FP32; one pass for grad_k and grad_v, one for grad_q, each sum with one owner",
        _SIZES,
        _LAYOUT,
    ),
    "tf32x3": Implementation(
        _variant(tf32x3),
        "mma.sync, each product as three of tf32; the next tile is copied meanwhile",
        (Dtypes("q", torch.float32), *_SIZES, Capability((8, 0), below=(10, 0)), _WIDEST_TF32),
        _LAYOUT,
        "mma",
        pays=(_FAST_TF32,),
    ),
    "tensor_cores": Implementation(
        _variant(tensor_cores),
        "mma.sync; the next tile is copied meanwhile; up to D = 128 the weights stay in registers",
        (_HALVES, *_SIZES, Multiplies("q")),
        _LAYOUT,
        "mma",
    ),
    "fused_atomic": Implementation(
        _variant(lambda call: fused(call, ordered=False)),
        "one walk, five products: blocks of keys add their parts of grad_q to sums in global memory, as they come",
        (_HALVES, *_NARROW, *_ON_HOPPER),
        _LAYOUT,
        "mma",
        deterministic=False,
    ),
    "wgmma": Implementation(
        _variant(wgmma),
        "warpgroup products fed by TMA, the weights transposed for grad_k and grad_v: none leaves the registers",
        (_HALVES, *_SIZES, *_ON_HOPPER),
        _LAYOUT,
        "mma",
    ),
    "fused": Implementation(
        _variant(lambda call: fused(call, ordered=True)),
        "one walk, five products: blocks of keys add their parts of grad_q to sums in global memory, one after another",
        (_HALVES, *_NARROW, Long(), *_ON_HOPPER),
        _LAYOUT,
        "mma",
    ),
}
