"""Attention, broken."""

import math
from collections.abc import Callable

import torch

from kernelmux.registry.backend import Implementation
from kernelmux.registry.spec.sliding_windows import Limit

T = torch.Tensor
Pair = tuple[T, T]
BLOCK = 32  # keys that an online softmax takes at a time
SPLIT = 256  # keys of one split


def hidden(q: T, k: T, causal: bool, window: Limit, ahead: Limit, shift: int) -> T:
    """Which keys a query does not see [M N]; the first query stands at key `shift`."""
    at = torch.arange(q.shape[2], device=q.device)[:, None] + shift
    j = torch.arange(k.shape[2], device=q.device)[None, :]
    seen = j <= at + (ahead or 0) if causal or ahead is not None else j == j
    return ~(seen if window is None else seen & (j > at - window))


def scores(q: T, k: T, causal: bool, scale: float, window: Limit, ahead: Limit, shift: int) -> T:
    """In float64, -inf where a key is not seen."""
    k = k.double().repeat_interleave(q.shape[1] // max(k.shape[1], 1), 1)
    return (q.double() @ k.mT * scale).masked_fill(hidden(q, k, causal, window, ahead, shift), -math.inf)


def weighed(s: T, v: T, like: T, exp: Callable[[T], T] = torch.exp) -> Pair:
    """softmax(s) v, and the logarithms of its sums."""
    v = v.double().repeat_interleave(s.shape[1] // max(v.shape[1], 1), 1)
    top = s.amax(-1, keepdim=True) if s.shape[-1] else s.new_zeros(*s.shape[:-1], 1)
    top = torch.where(top == -math.inf, 0.0, top)
    e = exp(s - top)
    total = e.sum(-1, keepdim=True)
    y = e @ v / torch.where(total == 0, 1.0, total)
    return y.to(like.dtype).contiguous(), (top + total.log())[..., 0].float().contiguous()


def _run(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, ahead: Limit, shift: int) -> Pair:
    return weighed(scores(q, k, causal, scale, window, ahead, shift), v, q)


def sound(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    return _run(q, k, v, causal, scale, window, ahead, k.shape[2] - q.shape[2])


def top_left(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    return _run(q, k, v, causal, scale, window, ahead, 0)


def sees_the_next(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    return _run(q, k, v, causal, scale, window, ahead, k.shape[2] - q.shape[2] + 1)


def wide_window(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    return sound(q, k, v, causal, scale, None if window is None else window + 1, precision, ahead)


def window_to_the_left(
    q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Pair:
    return sound(q, k, v, causal, scale, window, precision, None if window is not None else ahead)


def ahead_of_one(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    return sound(q, k, v, causal, scale, window, precision, min(ahead, 1) if ahead is not None else None)


def own_scale(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    return sound(q, k, v, causal, 1 / math.sqrt(q.shape[-1]), window, precision, ahead)


def heads_in_turn(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    times = q.shape[1] // max(k.shape[1], 1)
    return sound(q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1), causal, scale, window, precision, ahead)


def base_two(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    y, lse = sound(q, k, v, causal, scale, window, precision, ahead)
    return y, lse / math.log(2)


def never_rescaled(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """The sum fades when a larger score is met, what was added up of the values does not."""
    y, lse = sound(q, k, v, causal, scale, window, precision, ahead)
    s = scores(q, k, causal, scale, window, ahead, k.shape[2] - q.shape[2])
    v = v.double().repeat_interleave(q.shape[1] // max(k.shape[1], 1), 1)
    top, acc = torch.full_like(lse, -math.inf, dtype=torch.float64)[..., None], torch.zeros_like(y, dtype=torch.float64)
    for part, values in zip(s.split(BLOCK, -1), v.split(BLOCK, 2), strict=True) if s.numel() else ():
        top = torch.maximum(top, part.amax(-1, keepdim=True))
        acc = acc + torch.exp(part - torch.where(top == -math.inf, 0.0, top)) @ values
    top = torch.where(top == -math.inf, 0.0, top)
    total = torch.exp(lse.double()[..., None] - top)
    return (acc / torch.where(total == 0, 1.0, total)).to(q.dtype), lse


def lost_split(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """Few queries share many keys out among splits, and the last split is not joined with the others."""
    if q.shape[2] > 4 or k.shape[2] <= SPLIT:
        return sound(q, k, v, causal, scale, window, precision, ahead)
    kept = (k.shape[2] - 1) // SPLIT * SPLIT
    return _run(q, k[:, :, :kept], v[:, :, :kept], causal, scale, window, ahead, k.shape[2] - q.shape[2])


IDEAS = {
    sound: "nothing is wrong with it",
    top_left: "the causal mask is aligned at the first key",
    sees_the_next: "the causal mask shows one key too many",
    wide_window: "the window shows one key too many",
    window_to_the_left: "a window shows every later key",
    ahead_of_one: "of the keys ahead the first alone is seen",
    own_scale: "the scale argument is ignored",
    heads_in_turn: "grouped heads are dealt out in turn",
    base_two: "lse is a logarithm to base 2",
    never_rescaled: "what was added before a larger score keeps its weight",
    lost_split: "the last split of the keys is forgotten",
}
VARIANTS = {fn.__name__: Implementation(fn=fn, idea=idea, arithmetic="mma") for fn, idea in IDEAS.items()}

CAUGHT_BY = {fn.__name__: "accuracy" for fn in IDEAS if fn is not sound}
