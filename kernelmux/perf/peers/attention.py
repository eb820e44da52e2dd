"""Attention in other libraries: cuDNN, FlashAttention-2 and the memory-efficient kernels as torch has them (the backends of
scaled_dot_product_attention; `torch_ref/materialised` is its "math"), cuDNN's own frontend, FlashAttention-4, and fla, in
whose attention every query sees the keys up to its own place.

FlashAttention takes [B M H D], here as views of [B H M D]. FlashAttention-4 runs as it does unless told otherwise, with
one program for all keys of a tile of queries: on Hopper it cannot split them.

cuDNN's frontend says attention to cuDNN in one of two ways, as it sees fit; here the plans of both compete.
"""

import math
from functools import partial
from typing import Any

import torch

from kernelmux.perf.peers import _cudnn_frontend
from kernelmux.perf.peers._attention import COMMON, CUDNN, EFFICIENT, FLASH_2, Causal, rows_first, window_sizes
from kernelmux.perf.peers._libraries import function, library
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import OneOf
from kernelmux.registry.spec.sliding_windows import Limit

_flash_4 = function("flash_attn.cute.flash_attn_func")
_fla = function("fla.ops.attn.parallel.parallel_attn_fwd")
T = torch.Tensor
Pair = tuple[T, T]


def with_cudnn(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    y, lse = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, scale=scale)[:2]
    return y, lse.view(q.shape[:3])


def with_flash_2(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    left, right = window_sizes(causal, window, ahead)
    y, lse = torch.ops.aten._flash_attention_forward(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        None,
        None,
        q.shape[2],
        k.shape[2],
        0.0,
        causal,
        False,
        scale=scale,
        window_size_left=left,
        window_size_right=right,
    )[:2]
    return y.transpose(1, 2), lse


def with_efficient(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    y, lse = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal, scale=scale)[:2]
    return y, lse[:, :, : q.shape[2]]


def with_flash_4(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    y, lse = _flash_4(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        softmax_scale=scale,
        causal=causal,
        window_size=window_sizes(causal, window, ahead),
        return_lse=True,
    )
    return y.transpose(1, 2), lse


def _sdpa(implementation: str, graph: Any, q: Any, k: Any, v: Any, scale: float, window: Limit, ahead: Limit) -> Any:
    how = getattr(_cudnn_frontend.module().attention_implementation, implementation)
    band = _cudnn_frontend.band(window, ahead)
    return graph.sdpa(q, k, v, attn_scale=scale, generate_stats=True, implementation=how, **band)


_WAYS = (partial(_sdpa, "AUTO"), partial(_sdpa, "COMPOSITE"))


def with_cudnn_frontend(
    q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Pair:
    y, lse = torch.empty(q.shape, dtype=q.dtype, device=q.device), q.new_empty(q.shape[:3], dtype=torch.float32)
    _cudnn_frontend.compute(_WAYS, (q, k, v), (y, lse[..., None]), scale, window, 0 if causal else ahead)
    return y, lse


def with_fla(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """Its lse is in base 2."""
    y, lse = _fla(*map(rows_first, (q, k, v)), None, None, scale, window)
    return y.transpose(1, 2), lse.transpose(1, 2) * math.log(2)


FLA = (*COMMON, OneOf("causal", True), OneOf("ahead", None), Causal("="))
VARIANTS = {
    "cudnn": Implementation(fn=with_cudnn, idea="cuDNN through torch", requires=CUDNN, arithmetic="mma"),
    "cudnn_frontend": library("cudnn", with_cudnn_frontend, *COMMON, Causal("<="), arithmetic="mma"),
    "flash_2": Implementation(fn=with_flash_2, idea="FlashAttention-2 in torch", requires=FLASH_2, arithmetic="mma"),
    "efficient": Implementation(
        fn=with_efficient, idea="memory-efficient, in torch", requires=EFFICIENT, arithmetic="mma"
    ),
    "flash_4": library("flash_attn.cute", with_flash_4, *COMMON, arithmetic="mma"),
    "fla": library("fla", with_fla, *FLA, arithmetic="mma"),
}
