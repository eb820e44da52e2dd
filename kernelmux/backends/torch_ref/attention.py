"""Attention by torch: as its formula says, or by torch's FlashAttention-2.

materialised   two products and a softmax between them; the matrix of scores is written and read
plain          the kernel behind torch.nn.functional.scaled_dot_product_attention, which keeps the scores on the chip
exact          that kernel where it computes what is asked, else materialised
"""

import torch

from kernelmux.backends.torch_ref._attention import PAIRS, aligned, fits, flash, hidden, pieces, wide
from kernelmux.registry.backend import Implementation
from kernelmux.registry.spec.sliding_windows import Limit

T = torch.Tensor
Pair = tuple[T, T]


def materialised(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """Scores are scaled as distances to the largest one: these may overflow, to a weight of zero."""
    if not k.shape[2] or not q.numel():
        # Zeros that autograd can follow to q, k and v: a sum of nothing is 0, and one beside an empty q is not looked at.
        y = q.masked_fill(torch.ones((), dtype=torch.bool, device=q.device), 0.0) + (k.sum() + v.sum())
        return y.contiguous(), torch.full(q.shape[:3], -torch.inf, dtype=torch.float32, device=q.device)
    unseen, kind = hidden(q.shape[2], k.shape[2], causal, window, ahead, q.device), wide(q, precision)
    parts = [_part(q[b, h], k[b, g], v[b, g], scale, unseen, kind) for b, h, g in pieces(q, k)]
    if len(parts) == 1:
        return parts[0]
    y, lse = (torch.cat([part[i].flatten(0, 1) for part in parts]) for i in range(2))
    return y.view(q.shape), lse.view(q.shape[:3])


def _part(q: T, k: T, v: T, scale: float, unseen: T | None, kind: torch.dtype) -> Pair:
    # [B, G, H / G, M, N]
    s = torch.unflatten(q if scale >= 0 else -q, 1, (k.shape[1], -1)).to(kind) @ k[:, :, None].to(kind).mT
    if unseen is not None:
        s = s.masked_fill(unseen, -torch.inf)
    top = s.amax(-1, keepdim=True).detach()
    top = torch.where(top == -torch.inf, 0.0, top)
    e = (s - top) * abs(scale)
    if unseen is not None:
        e = e.masked_fill(unseen, -torch.inf)  # a scale of 0 made it NaN
    e = torch.exp(e)
    total = e.sum(-1, keepdim=True)
    y = (e / torch.where(total == 0, 1.0, total)) @ v[:, :, None].to(kind)
    lse = (top * abs(scale) + total.log())[..., 0]
    return y.flatten(1, 2).to(q.dtype).contiguous(), lse.flatten(1, 2).float().contiguous()


def plain(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """Called by its own name, as scaled_dot_product_attention keeps lse to itself."""
    aten = torch.ops.aten
    kernel = aten._scaled_dot_product_flash_attention if q.is_cuda else aten._scaled_dot_product_flash_attention_for_cpu
    found = kernel(q, k, v, 0.0, causal, scale=scale)
    return found[0].contiguous(), found[1].contiguous()


def exact(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    if not fits(q, k, causal, scale, window, ahead):
        return materialised(q, k, v, causal, scale, window, precision, ahead)
    if q.shape[0] * q.shape[1] > PAIRS:
        few = PAIRS // q.shape[1]
        split = zip(torch.split(q, few), torch.split(k, few), torch.split(v, few), strict=True)
        parts = [exact(*part, causal, scale, window, precision, ahead) for part in split]
        return torch.cat([y for y, _ in parts]), torch.cat([lse for _, lse in parts])
    # The kernel takes the largest score before it scales: a negative scale moves to q.
    q, k, v = aligned(q if scale > 0 else -q), aligned(k), aligned(v)
    found = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=abs(scale))
    return found[0].contiguous(), found[1].contiguous()


LAYOUT = dict.fromkeys("qkv", "last")

VARIANTS = {
    "materialised": Implementation(
        fn=materialised, idea="two products and a softmax, heads in pieces", layout=LAYOUT, arithmetic="mma"
    ),
    "plain": Implementation(
        fn=plain, idea="torch's FlashAttention-2", requires=flash("q", "k", "v"), layout=LAYOUT, arithmetic="mma"
    ),
    "exact": Implementation(
        fn=exact, idea="torch's FlashAttention-2 where it computes that", layout=LAYOUT, arithmetic="mma"
    ),
}
