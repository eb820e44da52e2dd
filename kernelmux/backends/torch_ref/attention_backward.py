"""Gradient of attention by torch.

plain   the gradient of the kernel behind torch.nn.functional.scaled_dot_product_attention
exact   that where it computes what is asked, else as the formula says
"""

from functools import partial

import torch

from kernelmux.backends.torch_ref._attention import PAIRS, aligned, fits, flash, hidden, pieces, wide
from kernelmux.backends.torch_ref._conditions import Where
from kernelmux.registry.backend import Implementation
from kernelmux.registry.spec.sliding_windows import Limit

T = torch.Tensor
Gradients = tuple[T, T, T]


def materialised(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Gradients:
    zeros = partial(torch.zeros_like, memory_format=torch.contiguous_format)
    grads = zeros(q), zeros(k), zeros(v)
    if not k.numel() or not q.numel():
        return grads
    unseen, kind = hidden(q.shape[2], k.shape[2], causal, window, ahead, q.device), wide(q, precision)
    found = [
        (b, h, g, _part(grad_out[b, h], q[b, h], k[b, g], v[b, g], y[b, h], lse[b, h], scale, unseen, kind))
        for b, h, g in pieces(q, k)
    ]
    if len(found) == 1:
        return found[0][3]
    for b, h, g, part in found:
        grads[0][b, h], grads[1][b, g], grads[2][b, g] = part
    return grads


def _part(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, scale: float, unseen: T | None, kind: torch.dtype
) -> Gradients:  # fmt: skip
    def grouped(x: T) -> T:  # [B, G, H / G, M, ...]; contiguous, as products of torch fault where rows are 2^30 apart
        return torch.unflatten(x, 1, (k.shape[1], -1)).to(kind).contiguous()

    q_, g_, k_, v_ = (grouped(x) for x in (q, grad_out, k, v))
    p = torch.exp((q_ @ k_.mT) * scale - grouped(lse)[..., None])
    delta = (g_ * grouped(y)).sum(-1, keepdim=True)
    ds = p * (g_ @ v_.mT - delta)
    if unseen is not None:  # a row that sees no key has lse = -inf, and there is no part of p that it has
        p, ds = p.masked_fill(unseen, 0.0), ds.masked_fill(unseen, 0.0)
    grad_q, grad_k, grad_v = (scale * (ds @ k_)).flatten(1, 2), (scale * (ds.mT @ q_)).sum(2), (p.mT @ g_).sum(2)
    return grad_q.to(q.dtype).contiguous(), grad_k.to(q.dtype).contiguous(), grad_v.to(q.dtype).contiguous()


def plain(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Gradients:
    if not q.is_cuda:
        on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        grads = on_cpu(grad_out, q, k, v, y, lse, 0.0, causal, scale=scale)
    else:
        kernel, nothing = (
            torch.ops.aten._scaled_dot_product_flash_attention_backward,
            lse.new_zeros((), dtype=torch.int64),
        )
        sizes = (None, None, q.shape[2], k.shape[2], 0.0, causal, nothing, nothing)
        grads = kernel(grad_out, q, k, v, y, lse, *sizes, scale=scale)
    return grads[0].contiguous(), grads[1].contiguous(), grads[2].contiguous()


def exact(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Gradients:
    if not fits(q, k, causal, scale, window, ahead) or q.shape[0] * q.shape[1] > PAIRS:
        return materialised(grad_out, q, k, v, y, lse, causal, scale, window, precision, ahead)
    flipped = scale < 0
    grad_out, q, k, v, y = (aligned(x) for x in (grad_out, -q if flipped else q, k, v, y))
    nothing = torch.zeros((), dtype=torch.int64, device=q.device)
    grad_q, grad_k, grad_v = torch.ops.aten._scaled_dot_product_flash_attention_backward(
        grad_out,
        q,
        k,
        v,
        y,
        lse.contiguous(),
        None,
        None,
        q.shape[2],
        k.shape[2],
        0.0,
        causal,
        nothing,
        nothing,
        scale=abs(scale),
    )
    return (-grad_q if flipped else grad_q).contiguous(), grad_k.contiguous(), grad_v.contiguous()


LAYOUT = dict.fromkeys(("grad_out", "q", "k", "v", "y"), "last")
UNSHARED = Where(
    "H = G",
    lambda call: call.axes["H"] == call.axes["G"],
    "of keys that heads share it rounds each head's gradient before it adds them",
)

VARIANTS = {
    "plain": Implementation(
        fn=plain,
        idea="torch's FlashAttention-2",
        requires=(UNSHARED, *flash("grad_out", "q", "k", "v", "y")),
        layout=LAYOUT | {"lse": "contiguous"},
        arithmetic="mma",
        deterministic=False,
    ),
    "exact": Implementation(
        fn=exact,
        idea="torch's FlashAttention-2 where it computes that, else five products, heads in pieces",
        layout=LAYOUT,
        arithmetic="mma",
        deterministic=False,
    ),
}
