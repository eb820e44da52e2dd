"""attention_backward, broken."""

import math
from collections.abc import Callable

import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants.attention import hidden, scores
from kernelmux.registry.spec.sliding_windows import Limit

mutant = Mutants("attention_backward")


# basics: Gradients of attention, broken.

T = torch.Tensor
Three = tuple[T, T, T]
BLOCK = 32  # queries, and keys, of a block


def weights(
    grad_out: T,
    q: T,
    k: T,
    v: T,
    y: T,
    lse: T,
    causal: bool,
    scale: float,
    window: Limit,
    ahead: Limit,
    leveled: bool = True,
) -> tuple[T, T]:
    """p and its gradient ds, in float64."""
    s = scores(q, k, causal, scale, window, ahead, k.shape[2] - q.shape[2])
    unseen = hidden(q, k, causal, window, ahead, k.shape[2] - q.shape[2])
    p = torch.exp(s - lse.double()[..., None]).masked_fill(unseen, 0.0)
    g, v = grad_out.double(), v.double().repeat_interleave(q.shape[1] // v.shape[1], 1)
    delta = (g * y.double()).sum(-1, keepdim=True) if leveled else 0.0
    return p, (p * (g @ v.mT - delta)).masked_fill(unseen, 0.0)


def products(p: T, ds: T, grad_out: T, q: T, k: T, scale: float, groups: Callable[[T], T] | None = None) -> Three:
    """The three gradients; groups: sums over the query heads that share a head of keys."""
    share = q.shape[1] // k.shape[1]
    summed = groups or (lambda x: x.reshape(x.shape[0], k.shape[1], share, *x.shape[2:]).sum(2))
    wide = k.double().repeat_interleave(share, 1)
    found = ds @ wide * scale, summed(ds.mT @ q.double()) * scale, summed(p.mT @ grad_out.double())
    grads = [torch.empty(x.shape, dtype=q.dtype, device=q.device).copy_(x) for x in found]
    return grads[0], grads[1], grads[2]


@mutant("nothing is wrong with it", family="basics", arithmetic="mma")
def sound(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Three:
    return products(*weights(grad_out, q, k, v, y, lse, causal, scale, window, ahead), grad_out, q, k, scale)


@mutant("ds without the row's sum of grad_out * y", family="basics", caught_by="accuracy", arithmetic="mma")
def no_row_term(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Three:
    p, ds = weights(grad_out, q, k, v, y, lse, causal, scale, window, ahead, leveled=False)
    return products(p, ds, grad_out, q, k, scale)


@mutant(
    "grad_k and grad_v are sums over the heads of another group",
    family="basics",
    caught_by="accuracy",
    arithmetic="mma",
)
def wrong_group(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Three:
    def in_turn(x: T) -> T:
        return x.reshape(x.shape[0], -1, k.shape[1], *x.shape[2:]).sum(1)

    p, ds = weights(grad_out, q, k, v, y, lse, causal, scale, window, ahead)
    if k.shape[1] == 1:  # with one group there is no wrong one: the last head is left out
        return products(p, ds, grad_out, q, k, scale, lambda x: x[:, : max(1, x.shape[1] - 1)].sum(1, keepdim=True))
    return products(p, ds, grad_out, q, k, scale, in_turn)


@mutant("keys skip the block of queries at the diagonal", family="basics", caught_by="accuracy", arithmetic="mma")
def skipped_block(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Three:
    """A causal block of keys begins at the block of queries that sees all of it, not at the first that sees some."""
    p, ds = weights(grad_out, q, k, v, y, lse, causal, scale, window, ahead)
    right = products(p, ds, grad_out, q, k, scale)
    if not causal:
        return right
    start = torch.arange(k.shape[2], device=q.device) // BLOCK * BLOCK + BLOCK - 1 - (k.shape[2] - q.shape[2])
    begin = -(-start.clamp(min=0) // BLOCK) * BLOCK
    kept = torch.arange(q.shape[2], device=q.device)[:, None] >= begin
    return right[0], *products(p * kept, ds * kept, grad_out, q, k, scale)[1:]


@mutant("takes lse for a logarithm to base 2", family="basics", caught_by="accuracy", arithmetic="mma")
def base_two(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Three:
    return sound(grad_out, q, k, v, y, lse * math.log(2), causal, scale, window, precision, ahead)


@mutant("a window shows every later key", family="basics", caught_by="accuracy", arithmetic="mma")
def window_to_the_left(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Three:
    bound = None if window is not None else ahead
    return sound(grad_out, q, k, v, y, lse, causal, scale, window, precision, bound)


@mutant("grad_k without the scale", family="basics", caught_by="accuracy", arithmetic="mma")
def unscaled_keys(
    grad_out: T, q: T, k: T, v: T, y: T, lse: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Three:
    p, ds = weights(grad_out, q, k, v, y, lse, causal, scale, window, ahead)
    right = products(p, ds, grad_out, q, k, scale)
    return right[0], products(p, ds, grad_out, q, k, 1.0)[1], right[2]


# order: Gradients of attention whose blocks of keys add to grad_q in memory.

ORDER_BLOCK = 16  # keys


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
        from kernelmux.conformance.mutants import _kernels

        p, ds = weights(grad_out, q, k, v, y, lse, causal, scale, window, ahead)
        grads = products(p, ds, grad_out, q, k, scale)
        if not q.numel() or not k.shape[2]:
            return grads
        wide = k.double().repeat_interleave(q.shape[1] // k.shape[1], 1) * scale
        pairs = zip(ds.split(ORDER_BLOCK, -1), wide.split(ORDER_BLOCK, 2), strict=True)
        parts = torch.stack([d @ x for d, x in pairs]).float().contiguous()
        total = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        programs = -(-q.numel() // _triton.BLOCK) * len(parts)
        _triton.launch(
            _kernels.add_parts,
            programs,
            total,
            parts,
            q.numel(),
            len(parts),
            ATOMIC=atomic,
            BLOCK=_triton.BLOCK,
        )
        return grads[0].copy_(total), grads[1], grads[2]

    return attention_backward


mutant(
    "blocks of keys read, add and write while others do",
    family="order",
    caught_by="accuracy",
    name="unguarded",
    arithmetic="mma",
)(_adding(False))
mutant("blocks of keys add as they come", family="order", caught_by="repeatability", name="atomics", arithmetic="mma")(
    _adding(True)
)
