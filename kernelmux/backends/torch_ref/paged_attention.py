"""Attention over pages by torch calls: the pages of every sequence are gathered.

plain   then it is scaled_dot_product_attention with a mask; a head of keys has the queries that share it as its rows
exact   then it is a softmax and two products
"""

import torch
import torch.nn.functional as F

from kernelmux.backends.torch_ref._conditions import filled
from kernelmux.backends.torch_ref._zeros import zeros
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Aligned


def plain(
    q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, page_table: torch.Tensor, lengths: torch.Tensor,
    scale: float,
) -> torch.Tensor:  # fmt: skip
    """Entries of the table that are no page are read as page 0: on a GPU they would end the process."""
    groups, slots = k_pages.shape[1], page_table.shape[1] * k_pages.shape[2]
    reached = torch.arange(slots, device=q.device) < lengths[:, None]  # [B, L * S]
    used = torch.where(reached[:, :: k_pages.shape[2]], page_table, 0)
    beyond, wrong = (lengths < 0) | (lengths > slots), (used < 0) | (used >= k_pages.shape[0])
    k, v = (x[used.masked_fill(wrong, 0)].transpose(1, 2).flatten(2, 3) for x in (k_pages, v_pages))  # [B, G, L * S, D]
    y = F.scaled_dot_product_attention(torch.unflatten(q, 1, (groups, -1)), k, v, reached[:, None, None], scale=scale)
    y = y.flatten(1, 2).masked_fill((lengths == 0)[:, None, None], 0.0)
    return y.masked_fill((wrong.any(1) | beyond)[:, None, None], torch.nan).contiguous()


def exact(
    q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, page_table: torch.Tensor, lengths: torch.Tensor,
    scale: float,
) -> torch.Tensor:  # fmt: skip
    groups, slots = k_pages.shape[1], page_table.shape[1] * k_pages.shape[2]
    if not slots or not q.numel():
        return zeros(q.shape, q, k_pages, v_pages)
    reached = torch.arange(slots, device=q.device) < lengths[:, None]  # [B, L * S]
    used = torch.where(reached[:, :: k_pages.shape[2]], page_table, 0)  # behind them anything may stand
    beyond, wrong = (lengths < 0) | (lengths > slots), (used < 0) | (used >= k_pages.shape[0])
    k, v = (x[used.masked_fill(wrong, 0)].transpose(1, 2).flatten(2, 3) for x in (k_pages, v_pages))  # [B, G, L * S, D]
    hidden = ~reached[:, None, None]
    s = torch.unflatten(q, 1, (groups, -1)).float() @ k.float().mT
    # Distances to the largest score are scaled: a scale may overflow them, to a weight of zero, but not meet 0 * inf.
    s = (s if scale >= 0 else -s).masked_fill(hidden, -torch.inf)
    top = s.amax(-1, keepdim=True)
    e = torch.exp(((s - torch.where(top == -torch.inf, 0.0, top)) * abs(scale)).masked_fill(hidden, -torch.inf))
    p = e / e.sum(-1, keepdim=True).masked_fill(lengths[:, None, None, None] == 0, 1.0)
    # A weight of 0 would not hide a NaN in a slot that was never written.
    y = p.to(q.dtype) @ v.masked_fill(hidden.mT, 0.0)
    return y.flatten(1, 2).masked_fill((wrong.any(1) | beyond)[:, None, None], torch.nan).contiguous()


VARIANTS = {
    "plain": Implementation(
        fn=plain,
        idea="pages gathered, then torch.nn.functional.scaled_dot_product_attention",
        requires=(filled("q", "k_pages", "page_table"), Aligned("q")),
        layout={"q": "contiguous"},
        arithmetic="mma",
    ),
    "exact": Implementation(fn=exact, idea="pages gathered, then softmax and two products", arithmetic="mma"),
}
