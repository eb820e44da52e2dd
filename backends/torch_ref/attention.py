"""Attention by torch.nn.functional.scaled_dot_product_attention."""

import torch

from kernelmux.registry.backend import Implementation


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """A copy of what is not made of rows at multiples of 16 bytes: torch's fused kernels fault there (torch 2.11, H200)."""
    places = (
        x.data_ptr(),
        *(s * x.element_size() for s, n in zip(x.stride()[:-1], x.shape[:-1], strict=True) if n > 1),
    )
    return x.clone(memory_format=torch.contiguous_format) if any(p % 16 for p in places) else x


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    if q.numel() == 0:  # the fused kernels return None for an empty batch on a GPU (torch 2.11)
        return torch.empty_like(q)
    rows, columns = q.shape[2], k.shape[2]
    mask = None
    if causal and rows != columns:  # is_causal aligns to the first key, the spec to the last
        mask = torch.ones(rows, columns, dtype=torch.bool, device=q.device).tril(columns - rows)
    grouped = q.shape[1] != k.shape[1]
    q, k, v = _aligned(q), _aligned(k), _aligned(v)
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal and mask is None, scale=scale, enable_gqa=grouped
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
