"""attention_backward: gradients of q, k and v, from the output and lse of the forward call (Dao, FlashAttention-2, 2023).

Keys and queries get their gradients in a kernel each, so that every sum is one program's and the same call gives the same
bits. Both need the sum of grad_out * y of each query.

pointers     loads by pointers; a first kernel takes that sum
bf16x6       fp32 on Hopper's tensor cores, each number as three of bf16; two warpgroups share 64 rows of a gradient;
             beyond D = 160 their planes leave no room for tiles of others, and fp32 stays with pointers
descriptors  loads and stores by the copy engine (TMA)
one_walk     one kernel for all gradients: programs that own keys add to those of queries, one after another
specialised  one warp only loads; beyond D = 128 keys and values in a kernel each
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton

from kernelmux.backends.triton._launch.card import TensorCores
from kernelmux.backends.triton._launch.launch import Config, like, shared_bytes
from kernelmux.backends.triton.attention._planes import RepaysPlanesOfHeads, pieces
from kernelmux.backends.triton.attention._problem import apart
from kernelmux.backends.triton.attention_backward._bf16x6_plans import OWN, bf16x6, bf16x6_shares
from kernelmux.backends.triton.attention_backward._descriptors import descriptors
from kernelmux.backends.triton.attention_backward._one_walk_plans import one_walk
from kernelmux.backends.triton.attention_backward._pointers import pointers
from kernelmux.backends.triton.attention_backward._problem import AttentionGradientProblem, delta_plan, problem
from kernelmux.backends.triton.attention_backward._specialised_plans import specialised
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import (
    Aligned,
    AtLeast,
    AtMost,
    Capability,
    Condition,
    Dtypes,
    Multiple,
    OneOf,
    SharedMemory,
)
from kernelmux.registry.spec import Call
from kernelmux.registry.spec.sliding_windows import Limit

T = torch.Tensor
Three = tuple[T, T, T]


def _tile(m: int, n: int, warps: int, stages: int) -> Config:
    return {"BLOCK_M": m, "BLOCK_N": n, "num_warps": warps, "num_stages": stages}


def keys_rule(p: AttentionGradientProblem) -> Config:
    """Two sums of [BLOCK_N, D] stay in registers beside two blocks of scores; larger blocks spill on sm_80 and sm_90."""
    if p.dtype == torch.float32:
        return _tile(16, 16 if p.columns > 128 else 32, warps=4, stages=1)
    if p.columns > 128:
        return _tile(32, 32, warps=8, stages=1)
    return _tile(32, 64, warps=8, stages=2)


def queries_rule(p: AttentionGradientProblem) -> Config:
    """One sum of [BLOCK_M, D]."""
    if p.dtype == torch.float32:
        return _tile(16 if p.columns > 128 else 32, 16, warps=4, stages=1)
    if p.columns > 128:
        return _tile(32, 32, warps=8, stages=1)
    return _tile(64, 64, warps=8, stages=2)


def bf16x6_rule(p: AttentionGradientProblem) -> dict[str, Config]:
    """Tiles of 64 rows, or 32 of more than 96 columns, where 64 spill; a second stage where there is room.

    H200, us, of 64 and 32 rows: causal, 2 x 16 x 2048, D = 64, 770 and 900 (in one stage 853), 1 x 16 x 4096, D = 128, 3126
    and 3170, 2 x 32/8 x 2048, D = 128, in a window of 512 1734 and 1664; 3 x 16/4 x 838, D = 72, 881 and 882; 4 x 8 x 1024,
    D = 96, 588 and 633.
    """
    width = sum(pieces(p.D))
    tile = 64 if width <= 96 else 32
    room = shared_bytes(p.device) - BARRIERS - 4 * OWN * tile - 12 * OWN * width
    stages = 2 if 24 * tile * width <= room else 1
    walk = {"TILE": tile, "STAGES": stages, "SHARES": 1}
    return {"keys": walk | {"SHARES": bf16x6_shares(p, tile)}, "queries": walk}


POINTERS_FP32 = 3.7e6  # operations per microsecond; H200, 1 x 16 x 4096, D = 128, causal: 46498 us, bf16x6 3170
BARRIERS = 2048  # bytes at most


def keys_descriptors_rule(p: AttentionGradientProblem) -> Config:
    """H200, 4 x 32 x 4096: at D = 128 3142 us, 3368 in blocks of 128 keys; at D = 64 1925 us, 2222 in 2 stages."""
    if p.columns > 128:  # 32 queries spill
        return _tile(16, 64, warps=8, stages=2)
    return _tile(64, 64, warps=4, stages=2 if p.columns > 64 else 3)


def queries_descriptors_rule(p: AttentionGradientProblem) -> Config:
    """H200, 4 x 32 x 4096: at D = 128 2447 us, 2565 in blocks of 64 queries; at D = 64 1218 us, 1253 in blocks of 128."""
    if p.columns > 128:
        return _tile(64, 64, warps=8, stages=2)
    if p.columns > 64 and p.M > 64:
        return _tile(128, 64, warps=8, stages=3)
    return _tile(64, 64, warps=4, stages=3)


def zeros(grads: Three) -> Three:
    """Gradients where there is no query or no key."""
    for grad in grads:
        grad.zero_()
    return grads


def attention_backward(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Three:
    grads = like(q), like(k), like(v)
    if not q.numel() or not k.numel():
        return zeros(grads)
    grad_out, q, k, v, y = apart(grad_out), apart(q), apart(k), apart(v), apart(y)
    p = problem(grad_out, q, k, v, y, causal, scale, window, precision, ahead)
    delta = torch.empty_like(lse, memory_format=torch.contiguous_format)
    delta_plan(p)(delta, grad_out, y)
    pointers(p, grads, grad_out, q, k, v, lse, delta, keys_rule, queries_rule)
    return grads


def _through_descriptors(run: Callable[..., None], *arguments: Any) -> Three:
    """The gradients that `run` writes. It reads grad_out and y by pointers too. arguments: those of the call, in order."""
    grad_out, q, k, v, y, lse, *scalars = arguments
    grads = like(q), like(k), like(v)
    if not q.numel() or not k.numel():
        return zeros(grads)
    grad_out, y = apart(grad_out), apart(y)
    run(problem(grad_out, q, k, v, y, *scalars), grads, grad_out, q, k, v, y, lse)
    return grads


def _two_walks(p: AttentionGradientProblem, grads: Three, grad_out: T, q: T, k: T, v: T, y: T, lse: T) -> None:
    descriptors(p, grads, grad_out, q, k, v, y, lse, keys_descriptors_rule, queries_descriptors_rule)


def attention_backward_descriptors(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Three:
    return _through_descriptors(_two_walks, grad_out, q, k, v, y, lse, causal, scale, window, precision, ahead)


def _by_planes(p: AttentionGradientProblem, grads: Three, grad_out: T, q: T, k: T, v: T, y: T, lse: T) -> None:
    bf16x6(p, grads, grad_out, q, k, v, y, lse, bf16x6_rule)


def attention_backward_bf16x6(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Three:
    q, k, v = apart(q), apart(k), apart(v)
    return _through_descriptors(_by_planes, grad_out, q, k, v, y, lse, causal, scale, window, precision, ahead)


def attention_backward_specialised(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Three:
    return _through_descriptors(specialised, grad_out, q, k, v, y, lse, causal, scale, window, precision, ahead)


def attention_backward_one_walk(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Three:
    return _through_descriptors(one_walk, grad_out, q, k, v, y, lse, causal, scale, window, precision, ahead)


def _least(call: Call) -> int:
    """Bytes of the smallest blocks of queries, keys, values and gradients in fp32; those of halves are at most as long."""
    columns = max(16, triton.next_power_of_2(call.axes["D"]))
    return 4 * 16 * columns * 4 + 1024 if call.arguments["q"].dtype == torch.float32 else 0


@dataclass(frozen=True)
class FasterApart:
    """Where a kernel for each gradient is faster than one walk, whose programs wait for one another at the start.

    H200, in one walk and by a kernel each, us: D = 128, 1 x 16 x 10000 causal 1816 and 2056, 4 x 32/8 x 4096 causal 2666
    and 3302, 2 x 16 x 4096 1206 and 1361, 2 x 16 x 1024 125 and 115, 1 x 4 x 512 causal 32 and 23; D = 112, 4 x 16 x 3000
    causal 795 and 825; D = 96, 4 x 16 x 4096 2350 and 2261; D = 64, causal, 1 x 16 x 10000 1146 and 1363, 2 x 32/8 x 2048
    312 and 286, 4 x 16 x 1024 115 and 106.
    """

    text: str = "64 < D <= 96, D > 128, N < 2048 (4096 for D <= 64) or B * H * N < 65536"

    def check(self, call: Call) -> str | None:
        """None, or what is long."""
        D, heads, keys = call.axes["D"], call.axes["B"] * call.axes["H"], call.axes["N"]
        if 64 < D <= 96 or D > 128 or keys < (2048 if D > 64 else 4096) or heads * keys < 65536:
            return None
        return f"D = {D}, B * H = {heads}, N = {keys}, needs {self.text}"


LAYOUT = dict.fromkeys(("grad_out", "q", "k", "v", "y"), "last") | {"lse": "contiguous"}

_SPECIALISED: tuple[Condition, ...] = (
    Capability((9, 0), below=(10, 0)),
    Multiple("D", 8),  # rows of the gradients too
    Dtypes("q", torch.float16, torch.bfloat16),
    *(Aligned(name) for name in ("grad_out", "q", "k", "v")),
)

VARIANTS = {
    "pointers": Implementation(
        attention_backward,
        "keys and queries in a kernel each, scores computed again",
        (TensorCores("q"), AtMost("D", 256), SharedMemory(_least)),
        LAYOUT,
        "mma",
    ),
    "bf16x6": Implementation(
        attention_backward_bf16x6,
        "fp32 as three numbers of bf16, a product as six; one warp loads, two warpgroups share 64 rows",
        (Capability((9, 0), below=(10, 0)), Dtypes("q", torch.float32), OneOf("precision", "ieee"), AtMost("D", 160)),
        LAYOUT,
        "mma",
        pays=(RepaysPlanesOfHeads(5, POINTERS_FP32, 2),),
    ),
    # Its tiles are those of Hopper's products; for sm_100 the same ones spill 236 bytes where there is a mask.
    "descriptors": Implementation(
        attention_backward_descriptors,
        "the same with TMA loads and stores",
        (
            Capability((9, 0), below=(10, 0)),
            AtMost("D", 256),
            Multiple("D", 8),  # rows of the gradients too
            Dtypes("q", torch.float16, torch.bfloat16),
            *(Aligned(name) for name in ("grad_out", "q", "k", "v")),
        ),
        LAYOUT,
        "mma",
    ),
    "one_walk": Implementation(
        attention_backward_one_walk,
        "one walk, five products: programs that own keys add to the gradients of queries, one after another",
        (AtLeast("D", 33), AtMost("D", 128), *_SPECIALISED),
        LAYOUT,
        "mma",
    ),
    # H200, causal, us: 2 x 16 x 4096, D = 256, 1774, descriptors 4225; 2 x 16/4 x 4096, D = 160, 1160 and 4708; 4 x 16 x
    # 2048, D = 96, 365 and 492; 1 x 16 x 10000, D = 128, 2056 and 2476; D = 64, 3 x 32/4 x 784 122 and 159, 2 x 32/8 x 2048
    # 286 and 333, 1 x 4 x 512 18 and 23, and in one walk 2 x 16 x 4096 456, descriptors 504.
    "specialised": Implementation(
        attention_backward_specialised,
        "one warp loads, two warpgroups compute, a kernel for each gradient",
        (AtLeast("D", 33), AtMost("D", 256), FasterApart(), *_SPECIALISED),
        LAYOUT,
        "mma",
    ),
}
