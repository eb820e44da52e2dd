"""attention: softmax(scale * q k^T) v for each head, in one pass over the keys (Dao et al., FlashAttention, 2022).

online       a running maximum and sum rescale what was added so far; scores never leave the SM
descriptors  the same with loads and stores by the copy engine (TMA)
specialised  one warp only loads; two warpgroups overlap the products of one block with the exponentials of another
Blocks of keys that every query of a block may see are walked without a mask; only the rest pay for one.
"""

from __future__ import annotations

from typing import Any

import torch

from kernelmux.backends.triton._tuned import winner
from kernelmux.backends.triton.attention._descriptors import descriptors
from kernelmux.backends.triton.attention._online import online
from kernelmux.backends.triton.attention._specialised import specialised
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Aligned, Capability, Condition, Dtypes, OneOf

Config = dict[str, Any]


def _tile(m: int, n: int, warps: int, stages: int) -> Config:
    return {"BLOCK_M": m, "BLOCK_N": n, "num_warps": warps, "num_stages": stages}


# What a search tries.
SPACE = (
    _tile(128, 128, warps=8, stages=2),
    _tile(128, 64, warps=8, stages=2),
    _tile(128, 64, warps=8, stages=3),
    _tile(128, 64, warps=4, stages=2),
    _tile(128, 64, warps=4, stages=3),
    _tile(64, 128, warps=4, stages=2),
    _tile(64, 64, warps=4, stages=2),
    _tile(64, 64, warps=4, stages=3),
)


def key(q: torch.Tensor, causal: bool) -> str:
    """The class of a call in the table of winners."""
    return f"{str(q.dtype).removeprefix('torch.')} D{q.shape[3]} {'causal' if causal else 'full'}"


def rule(q: torch.Tensor) -> Config:
    """64 queries per warpgroup of 4 warps; fewer where the blocks of 128 would not fill the GPU."""
    if q.dtype == torch.float32:
        return _tile(32, 32, warps=4, stages=1)
    if q.shape[2] <= 64:
        return _tile(64, 64, warps=4, stages=2)
    return _tile(128, 128 if q.shape[3] == 64 else 64, warps=8, stages=3)


def attention_online(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    return online(q, k, v, causal, scale, winner("attention/online", key(q, causal), q) or rule(q))


def attention_descriptors(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> torch.Tensor:
    return descriptors(q, k, v, causal, scale, winner("attention/descriptors", key(q, causal), q) or rule(q))


def attention_specialised(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> torch.Tensor:
    config = winner("attention/specialised", key(q, causal), q) or {"BLOCK_N": 128, "STAGES": 256 // q.shape[3]}
    return specialised(q, k, v, causal, scale, config)


LAST = {"q": "last", "k": "last", "v": "last"}
HEADS: tuple[Condition, ...] = (OneOf("D", 64, 128),)
DESCRIPTORS: tuple[Condition, ...] = (
    *HEADS,
    Capability((9, 0)),
    Dtypes("q", torch.float16, torch.bfloat16),
    *(Aligned(name) for name in "qkv"),
)

VARIANTS = {
    "online": Implementation(
        fn=attention_online, idea="running maximum and sum", requires=HEADS, layout=LAST, arithmetic="mma"
    ),
    "descriptors": Implementation(
        fn=attention_descriptors, idea="the same with TMA loads and stores",
        requires=DESCRIPTORS, layout=LAST, arithmetic="mma",
    ),
    "specialised": Implementation(
        fn=attention_specialised, idea="one warp loads, two warpgroups multiply and exponentiate in turn",
        requires=DESCRIPTORS, layout=LAST, arithmetic="mma",
    ),
}  # fmt: skip
