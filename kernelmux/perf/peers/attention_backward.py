"""The gradient of attention in other libraries, each from the output and the lse of a forward call.

FlashAttention takes [B M H D], here as views of [B H M D].
"""

from functools import cache

import torch

from kernelmux.perf.peers._attention import COMMON, CUDNN, EFFICIENT, FLASH_2, LSE_ROWS, rows_first, window_sizes
from kernelmux.perf.peers._libraries import function, library
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Multiple
from kernelmux.registry.spec.sliding_windows import Limit

_flash_4 = function("flash_attn.cute.interface._flash_attn_bwd")
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


VARIANTS = {
    "cudnn": Implementation(
        fn=with_cudnn, idea="cuDNN through torch", requires=CUDNN, arithmetic="mma", deterministic=False
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
}
