"""Attention that takes long stretches of keys in an order by chance."""

import torch

from kernelmux.conformance.mutants.basics.attention import Pair, T, sound
from kernelmux.registry.backend import Implementation
from kernelmux.registry.spec.sliding_windows import Limit

LONG = 64  # keys
ORDERS = torch.Generator().manual_seed(0)


def shuffled_keys(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    y, lse = sound(q, k, v, causal, scale, window, precision, ahead)
    if k.shape[2] < LONG or causal or window is not None or not q.numel():
        return y, lse
    shared = q.shape[1] // k.shape[1]
    k, v = (t.float().repeat_interleave(shared, 1) for t in (k, v))
    scores = q.float() @ k.mT * scale
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    total, mixed = torch.zeros_like(e[..., :1]), torch.zeros(q.shape, device=q.device, dtype=torch.float32)
    for i in torch.randperm(-(-k.shape[2] // 16), generator=ORDERS).tolist():
        part = slice(16 * i, 16 * i + 16)
        total += e[..., part].sum(-1, keepdim=True)
        mixed += e[..., part] @ v[:, :, part]
    return y.copy_(mixed / total), lse


VARIANTS = {"shuffled_keys": Implementation(fn=shuffled_keys, idea="tiles of keys come in an order by chance")}

CAUGHT_BY = {"shuffled_keys": "repeatability"}
