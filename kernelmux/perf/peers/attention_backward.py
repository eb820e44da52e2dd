"""The gradient of attention in other libraries, each from the output and the lse of a forward call.

FlashAttention takes [B M H D], here as views of [B H M D].
"""

import math
from functools import cache
from typing import Any

import torch

from kernelmux.perf.peers import _cudnn_frontend
from kernelmux.perf.peers._attention import (
    COMMON,
    CUDNN,
    EFFICIENT,
    FLASH_2,
    LSE_ROWS,
    Causal,
    rows_first,
    window_sizes,
)
from kernelmux.perf.peers._libraries import function, library
from kernelmux.perf.peers.attention import FLA
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Multiple
from kernelmux.registry.spec.sliding_windows import Limit

_flash_4 = function("flash_attn.cute.interface._flash_attn_bwd")
_fla = function("fla.ops.attn.parallel.parallel_attn_bwd")
T = torch.Tensor
Gradients = tuple[T, T, T]


@cache
def _nothing(device: torch.device) -> T:
    """The state of the random numbers of dropout, of which there is none."""
    return torch.zeros(2, dtype=torch.int64, device=device)


def with_cudnn(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Gradients:
    none = _nothing(q.device)
    found: Gradients = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        grad_out,
        q,
        k,
        v,
        y,
        lse[..., None],
        none[0],
        none[1],
        None,
        None,
        None,
        q.shape[2],
        k.shape[2],
        0.0,
        causal,
        scale=scale,
    )
    return found


def with_flash_2(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Gradients:
    left, right = window_sizes(causal, window, ahead)
    none = _nothing(q.device)
    grad_q, grad_k, grad_v = torch.ops.aten._flash_attention_backward(
        rows_first(grad_out),
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        rows_first(y),
        lse,
        None,
        None,
        q.shape[2],
        k.shape[2],
        0.0,
        causal,
        none,
        none,
        scale=scale,
        window_size_left=left,
        window_size_right=right,
    )
    return grad_q.transpose(1, 2), grad_k.transpose(1, 2), grad_v.transpose(1, 2)


def with_efficient(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Gradients:
    none = _nothing(q.device)
    wanted = [True, True, True, False]  # not of a bias
    found: Gradients = torch.ops.aten._scaled_dot_product_efficient_attention_backward(
        grad_out, q, k, v, None, y, lse, none[0], none[1], 0.0, wanted, causal, scale=scale
    )[:3]
    return found


def with_flash_4(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Gradients:
    left, right = window_sizes(causal, window, ahead)
    grad_q, grad_k, grad_v = _flash_4(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        y.transpose(1, 2),
        grad_out.transpose(1, 2),
        lse,
        softmax_scale=scale,
        causal=causal,
        window_size_left=left,
        window_size_right=right,
    )
    return grad_q.transpose(1, 2), grad_k.transpose(1, 2), grad_v.transpose(1, 2)


def _sdpa_backward(graph: Any, *tensors_and_scalars: Any) -> Any:
    *tensors, scale, window, ahead = tensors_and_scalars
    return graph.sdpa_backward(*tensors, attn_scale=scale, **_cudnn_frontend.band(window, ahead))


def with_cudnn_frontend(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Gradients:
    grad_q, grad_k, grad_v = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    given = (q, k, v, y, grad_out, lse[..., None])
    found = (grad_q, grad_k, grad_v)
    _cudnn_frontend.compute((_sdpa_backward,), given, found, scale, window, 0 if causal else ahead)
    return found


def with_fla(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Gradients:
    """Its lse is in base 2."""
    base_2 = (lse / math.log(2)).transpose(1, 2).contiguous()
    q, k, v, y, grad_out = map(rows_first, (q, k, v, y, grad_out))
    found = _fla(q, k, v, y, None, base_2, grad_out, scale=scale, window_size=window)[:3]
    grad_q, grad_k, grad_v = (x.to(q.dtype).transpose(1, 2) for x in found)
    return grad_q, grad_k, grad_v


VARIANTS = {
    "cudnn": Implementation(
        fn=with_cudnn, idea="cuDNN through torch", requires=CUDNN, arithmetic="mma", deterministic=False
    ),
    "cudnn_frontend": library(
        "cudnn", with_cudnn_frontend, *COMMON, Causal("<="), arithmetic="mma", deterministic=False
    ),
    "flash_2": Implementation(
        fn=with_flash_2, idea="FlashAttention-2 in torch", requires=FLASH_2, arithmetic="mma", deterministic=False
    ),
    "efficient": Implementation(
        fn=with_efficient,
        idea="memory-efficient, in torch",
        requires=(*EFFICIENT, Multiple("M", LSE_ROWS)),
        arithmetic="mma",
        deterministic=False,
    ),
    "flash_4": library("flash_attn.cute", with_flash_4, *COMMON, arithmetic="mma", deterministic=False),
    "fla": library("fla", with_fla, *FLA, arithmetic="mma"),
}
