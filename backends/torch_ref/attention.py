"""Attention by torch.nn.functional.scaled_dot_product_attention."""

import torch

from kernelmux.registry.backend import Implementation


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    rows, columns = q.shape[2], k.shape[2]
    mask = None
    if causal and rows != columns:  # is_causal aligns to the first key, the spec to the last
        mask = torch.ones(rows, columns, dtype=torch.bool, device=q.device).tril(columns - rows)
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal and mask is None, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


# torch's CPU kernel misreads rows that overlap (300 times the bound with torch 2.13), hence the layouts.
VARIANTS = {
    "eager": Implementation(
        fn=attention,
        idea="scaled_dot_product_attention",
        layout=dict.fromkeys("qkv", "matrix"),
        arithmetic="mma",
    )
}
