"""Gradients of attention whose blocks of keys add to grad_q in memory."""

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants.basics.attention_backward import T, Three, products, weights
from kernelmux.registry.backend import Implementation
from kernelmux.registry.spec.sliding_windows import Limit

BLOCK = 16  # keys


@triton.jit
def _add_parts(total, parts, n, blocks, ATOMIC: tl.constexpr, BLOCK: tl.constexpr):
    part = tl.program_id(0) % blocks
    i = tl.program_id(0) // blocks * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(parts + part.to(tl.int64) * n + i, mask=i < n, other=0.0)
    if ATOMIC:
        tl.atomic_add(total + i, x, mask=i < n)
    else:
        tl.store(total + i, tl.load(total + i, mask=i < n) + x, mask=i < n)


def _adding(atomic: bool) -> Callable[..., Three]:
    def attention_backward(
        grad_out: T,
        q: T,
        k: T,
        v: T,
        y: T,
        lse: T,
        causal: bool,
        scale: float,
        window: Limit,
        precision: str,
        ahead: Limit,
    ) -> Three:
        p, ds = weights(grad_out, q, k, v, y, lse, causal, scale, window, ahead)
        grads = products(p, ds, grad_out, q, k, scale)
        if not q.numel() or not k.shape[2]:
            return grads
        wide = k.double().repeat_interleave(q.shape[1] // k.shape[1], 1) * scale
        pairs = zip(ds.split(BLOCK, -1), wide.split(BLOCK, 2), strict=True)
        parts = torch.stack([d @ x for d, x in pairs]).float().contiguous()
        total = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        programs = -(-q.numel() // _triton.BLOCK) * len(parts)
        _triton.launch(_add_parts, programs, total, parts, q.numel(), len(parts), ATOMIC=atomic, BLOCK=_triton.BLOCK)
        return grads[0].copy_(total), grads[1], grads[2]

    return attention_backward


VARIANTS = {
    "unguarded": Implementation(
        fn=_adding(False), idea="blocks of keys read, add and write while others do", arithmetic="mma"
    ),
    "atomics": Implementation(fn=_adding(True), idea="blocks of keys add as they come", arithmetic="mma"),
}

CAUGHT_BY = {"unguarded": "accuracy", "atomics": "repeatability"}
