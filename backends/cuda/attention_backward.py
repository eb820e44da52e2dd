"""The gradient of attention on CUDA: the weights are computed again from lse, no M x N matrix reaches memory.

Every rung takes two passes over the weights, one for grad_k and grad_v, one for grad_q, so that each sum has one owner
and a fixed order (Dao, FlashAttention-2, 2023, has one pass and adds to grad_q by atomics).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import log2
from typing import Any, NamedTuple

import torch

from kernelmux.backends.cuda._layout import Layout, layout
from kernelmux.backends.cuda._runtime import Bound, Source, Tiles, cdiv, ctype
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost, Condition, Multiple

_OFFSETS = Source(__file__, "attention_backward_offsets.cu")
_SIMPLE = Source(__file__, "attention_backward_simple.cu")

_STRIDES = "grad_step:struct q_step:struct k_step:struct v_step:struct"
_SHAPE = "heads:i32 group:i32 M:i32 N:i32 pitch:i32 window:i32 scale:f32 scale_log2:f32"
_LARGEST = float(torch.finfo(torch.float32).max)
_PITCH = 128  # rows of offsets come in whole tiles, of any kernel


class Call(NamedTuple):
    """All that a plan depends on besides addresses; a window of None or as long as the keys is 0."""

    inputs: tuple[Layout, ...]  # grad_out, q, k, v, y
    causal: bool
    scale: float
    window: int

    @property
    def dims(self) -> tuple[int, int, int, int, int, int]:
        """B, H, G, M, N, D."""
        q, k = self.inputs[1].shape, self.inputs[2].shape
        return q[0], q[1], k[1], q[2], k[2], q[3]

    @property
    def pitch(self) -> int:
        return cdiv(self.dims[3], _PITCH) * _PITCH

    @property
    def defines(self) -> dict[str, object]:
        masks = {"CAUSAL": int(self.causal), "WINDOWED": int(self.window > 0)}
        return {"ELEMENT": ctype(self.inputs[1].dtype), "HEAD_DIM": self.dims[5], **masks}

    @property
    def numbers(self) -> tuple[int | float, ...]:
        """The numbers of `_SHAPE`."""
        _, heads, kv_heads, M, N, _ = self.dims
        scales = (max(-_LARGEST, min(self.scale * factor, _LARGEST)) for factor in (1.0, log2(2.718281828459045)))
        return heads, heads // kv_heads, M, N, self.pitch, self.window, *scales

    @property
    def strides(self) -> tuple[bytes, ...]:
        """Those of batch, head and row, by input."""
        return tuple(struct.pack("3q", *x.strides[:3]) for x in self.inputs)

    def vector(self, *inputs: Layout) -> int:
        """Elements per load: 16 bytes where every row starts at a multiple of that, else 1."""
        width = 16 // self.inputs[0].dtype.itemsize
        even = all(not x.offset and not any(s % width for s in _real_strides(x)) for x in inputs)
        return width if even else 1


def _real_strides(x: Layout) -> tuple[int, ...]:
    """Strides of batch, head and row; an axis of length 1 has none, whatever torch says, and gets a row's length."""
    return tuple(s if n > 1 else x.shape[3] for s, n in zip(x.strides[:3], x.shape, strict=False))


@dataclass(frozen=True)
class Plan:
    """A kind of call, ready to run: first the offsets of the rows, then what computes the gradients."""

    call: Call
    offsets: Bound
    launch: Callable[..., None]

    def run(self, grad_out: torch.Tensor, *saved: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, y, lse = saved
        grads = tuple(x.new_empty(x.shape) for x in (q, k, v))
        B, H, _, _, _, _ = self.call.dims
        offsets = lse.new_empty((B * H, 2, self.call.pitch))
        strides = self.call.strides
        self.offsets(grad_out, y, lse, offsets, strides[0], strides[4])
        self.launch((grad_out, q, k, v), offsets, *grads)
        return grads


def _variant(make: Callable[[Call], Callable[..., None]]) -> Callable[..., Any]:
    """An implementation from what turns a call into a launch of the kernels behind the offsets."""

    @lru_cache(maxsize=4096)
    def plan(call: Call) -> Plan:
        return Plan(call, _offsets(call), make(call))

    def run(
        grad_out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, y: torch.Tensor, lse: torch.Tensor,
        causal: bool, scale: float, window: int | None, precision: str,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        if not q.numel() or not k.numel():
            return tuple(x.new_zeros(x.shape) for x in (q, k, v))
        limit = 0 if window is None or window >= k.shape[2] else window
        return plan(Call(tuple(map(layout, (grad_out, q, k, v, y))), causal, scale, limit)).run(
            grad_out, q, k, v, y, lse
        )

    return run


def _offsets(call: Call) -> Bound:
    grad_out, y = call.inputs[0], call.inputs[4]
    B, H, _, M, _, D = call.dims
    kernel = _OFFSETS.kernel(
        "attention_backward_offsets",
        "grad_out* y* lse* offsets* grad_step:struct y_step:struct rows:i64 heads:i32 M:i32 pitch:i32",
        ELEMENT=ctype(grad_out.dtype), HEAD_DIM=D, VECTOR=call.vector(grad_out, y),
    )  # fmt: skip
    rows = B * H * call.pitch
    return kernel.bind(cdiv(rows, 16), 256, rows, H, M, call.pitch)


def _simple(call: Call) -> Callable[..., None]:
    B, H, G, M, N, _ = call.dims
    inputs, rows = "grad_out* q* k* v* offsets*", 32
    of_keys = _SIMPLE.kernel(
        "attention_backward_keys", f"{inputs} grad_k* grad_v* {_STRIDES} {_SHAPE}", **call.defines
    ).bind(B * G * cdiv(N, rows), 256, *call.numbers)
    of_queries = _SIMPLE.kernel(
        "attention_backward_queries", f"{inputs} grad_q* {_STRIDES} {_SHAPE}", **call.defines
    ).bind(B * H * cdiv(M, rows), 256, *call.numbers)
    steps = call.strides[:4]

    def launch(inputs: tuple[torch.Tensor, ...], offsets: torch.Tensor, *grads: torch.Tensor) -> None:
        of_keys(*inputs, offsets, *grads[1:], *steps)
        of_queries(*inputs, offsets, grads[0], *steps)

    return launch


_LAYOUT = dict.fromkeys(("grad_out", "q", "k", "v", "y"), "last") | {"lse": "contiguous"}
_SIZES: tuple[Condition, ...] = (Multiple("D", 8), AtMost("D", 256), AtMost("M", 2**30), AtMost("N", 2**30))

VARIANTS = {
    "simple": Implementation(
        _variant(_simple), "FP32; one pass for grad_k and grad_v, one for grad_q, each sum with one owner", _SIZES, _LAYOUT
    ),
}
