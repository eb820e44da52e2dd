"""attention, broken."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from kernelmux.conformance.mutants._cuda import launch
from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.registry.conditions import AtMost, OneOf
from kernelmux.registry.errors import UnsupportedError
from kernelmux.registry.spec.sliding_windows import Limit

mutant = Mutants("attention")


# basics: Attention, broken.

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


@mutant("nothing is wrong with it", family="basics", arithmetic="mma")
def sound(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    return _run(q, k, v, causal, scale, window, ahead, k.shape[2] - q.shape[2])


@mutant(
    "begins a block late where unseen keys fill whole blocks", family="basics", caught_by="accuracy", arithmetic="mma"
)
def late_block(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """Blocks of 64 keys; those that no query sees are passed over, and one more if they end where a block does."""
    shift = k.shape[2] - q.shape[2]
    unseen = hidden(q, k, causal, window, ahead, shift).all(0)
    first = int(unseen.long().cumprod(0).sum()) if k.shape[2] else 0
    s = scores(q, k, causal, scale, window, ahead, shift)
    if window is not None and first and first % 64 == 0:
        s[..., first : first + 1] = -math.inf
    return weighed(s, v, q)


@mutant("the causal mask is aligned at the first key", family="basics", caught_by="accuracy", arithmetic="mma")
def top_left(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    return _run(q, k, v, causal, scale, window, ahead, 0)


@mutant("the causal mask shows one key too many", family="basics", caught_by="accuracy", arithmetic="mma")
def sees_the_next(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    return _run(q, k, v, causal, scale, window, ahead, k.shape[2] - q.shape[2] + 1)


@mutant("the window shows one key too many", family="basics", caught_by="accuracy", arithmetic="mma")
def wide_window(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    return sound(q, k, v, causal, scale, None if window is None else window + 1, precision, ahead)


@mutant("a window shows every later key", family="basics", caught_by="accuracy", arithmetic="mma")
def window_to_the_left(
    q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Pair:
    return sound(q, k, v, causal, scale, window, precision, None if window is not None else ahead)


@mutant("of the keys ahead the first alone is seen", family="basics", caught_by="accuracy", arithmetic="mma")
def ahead_of_one(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    return sound(q, k, v, causal, scale, window, precision, min(ahead, 1) if ahead is not None else None)


@mutant("the scale argument is ignored", family="basics", caught_by="accuracy", arithmetic="mma")
def own_scale(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    return sound(q, k, v, causal, 1 / math.sqrt(q.shape[-1]), window, precision, ahead)


@mutant("grouped heads are dealt out in turn", family="basics", caught_by="accuracy", arithmetic="mma")
def heads_in_turn(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    times = q.shape[1] // max(k.shape[1], 1)
    return sound(q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1), causal, scale, window, precision, ahead)


@mutant("lse is a logarithm to base 2", family="basics", caught_by="accuracy", arithmetic="mma")
def base_two(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    y, lse = sound(q, k, v, causal, scale, window, precision, ahead)
    return y, lse / math.log(2)


@mutant(
    "what was added before a larger score keeps its weight", family="basics", caught_by="accuracy", arithmetic="mma"
)
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


@mutant("the last split of the keys is forgotten", family="basics", caught_by="accuracy", arithmetic="mma")
def lost_split(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """Few queries share many keys out among splits, and the last split is not joined with the others."""
    if q.shape[2] > 4 or k.shape[2] <= SPLIT:
        return sound(q, k, v, causal, scale, window, precision, ahead)
    kept = (k.shape[2] - 1) // SPLIT * SPLIT
    return _run(q, k[:, :, :kept], v[:, :, :kept], causal, scale, window, ahead, k.shape[2] - q.shape[2])


# shapes: Attention, broken for batches, groups and slices that small tests do not have.

SHAPES_BLOCK = 64


@mutant("reads the heads of k and v with one pitch", family="shapes", caught_by="layout")
def sliced_values(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """k and v of a cache are cut alike, so that one pitch of heads is handed over: the shorter one."""
    if v.numel() and v.shape[1] > 1 and v.stride()[2:] == k.stride()[2:]:
        pitch = min(k.stride(1), v.stride(1))
        k, v = (x.as_strided(x.shape, (x.stride(0), pitch, *x.stride()[2:])) for x in (k, v))
    return sound(q, k, v, causal, scale, window, precision, ahead)


@mutant("causal, with shared keys: those of the first batch", family="shapes", caught_by="accuracy")
def first_batch(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """Where heads share keys, the causal kernel forgets the batch."""
    if causal and k.shape[1] < q.shape[1]:
        k = k[:1].expand(k.shape)
    return sound(q, k, v, causal, scale, window, precision, ahead)


@mutant("the last query of a full block misses its own key", family="shapes", caught_by="accuracy")
def full_blocks(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """A full block of queries ends before its last key, where there are more keys than queries."""
    y, lse = sound(q, k, v, causal, scale, window, precision, ahead)
    m, n = q.shape[2], k.shape[2]
    if causal and m and m % SHAPES_BLOCK == 0 and n > m:
        last = sound(q[:, :, -1:], k[:, :, :-1], v[:, :, :-1], causal, scale, window, precision, ahead)
        y[:, :, -1:], lse[:, :, -1:] = last
    return y, lse


@mutant("head lengths beyond a multiple of 32 are cut", family="shapes", caught_by="accuracy")
def whole_warps(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """Columns beyond the last 32 have no part in the scores."""
    kept = q.shape[3] // 32 * 32 or q.shape[3]
    cut = torch.where(torch.arange(q.shape[3], device=q.device) < kept, q, 0)
    return sound(cut, k, v, causal, scale, window, precision, ahead)


# scalars: Attention, broken for unusual scales.


@mutant("nothing is wrong with it", family="scalars", name="sound", arithmetic="mma")
def scalars_sound(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """In float64 but for the exponential."""
    s = scores(q, k, causal, scale, window, ahead, k.shape[2] - q.shape[2])
    return weighed(s, v, q, lambda x: torch.exp(x.float()).double())


@mutant("a scale of 0 counts as none given", family="scalars", caught_by="scalars", arithmetic="mma")
def zero_is_default(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    return scalars_sound(q, k, v, causal, scale or 1 / math.sqrt(q.shape[-1]), window, precision, ahead)


@mutant("gives q and k a root of the scale", family="scalars", caught_by="scalars", arithmetic="mma")
def scale_by_roots(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """sqrt(|scale|) into q and k each, so that neither overflows: the sign is lost."""
    root = math.sqrt(abs(scale))
    y, lse = scalars_sound(q.double() * root, k.double() * root, v, causal, 1.0, window, precision, ahead)
    return y.to(q.dtype), lse


@mutant("adds the mask before the scale", family="scalars", caught_by="scalars", arithmetic="mma")
def masked_by_product(
    q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit
) -> Pair:
    """The mask is -inf before it is scaled; a guard against NaN then shows all keys where the scale is not positive."""
    return scalars_sound(q, k, v, causal and scale > 0, scale, window, precision, ahead)


# order: Attention that takes long stretches of keys in an order by chance.

LONG = 64  # keys
ORDERS = torch.Generator().manual_seed(0)


@mutant("tiles of keys come in an order by chance", family="order", caught_by="repeatability")
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


# claims: Attention that refuses calls it has not declared to refuse.


@mutant("takes D = 64 alone and says so", family="claims", name="narrow", requires=(OneOf("D", 64),), arithmetic="mma")
def attention(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    return sound(q, k, v, causal, scale, window, precision, ahead)


@mutant("refuses in the kernel what it declares to run", family="claims", caught_by="accuracy", arithmetic="mma")
def refused_inside(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    if k.shape[2] % 8:
        raise UnsupportedError(f"attention: N = {k.shape[2]}, needs a multiple of 8")
    return attention(q, k, v, causal, scale, window, precision, ahead)


# extent: Attention with every pair of batch and head in grid.z.

PACKED = {"q": "contiguous", "k": "contiguous", "v": "contiguous"}
SOURCE = Path(__file__).with_name("attention.cu")


@mutant(
    "batch and head in grid.z",
    family="extent",
    caught_by="extent",
    requires=(AtMost("D", 128),),
    layout=PACKED,
    arithmetic="fp32",
)
def grid_z(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """A thread per query."""
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    batch, heads, m, d = q.shape
    if y.numel():
        sizes = [np.int32(n) for n in (heads, k.shape[1], m, k.shape[2], d, causal, window or 0)]
        grid = (-(-m // 32), 1, batch * heads)
        launch(SOURCE, "attention_z", grid, 32, (q, k, v, y, lse, *sizes, np.float32(scale)), q.dtype)
    return y, lse


# ambience: Attention that changes modes of the whole process.


@mutant("turns off deterministic algorithms", family="ambience", caught_by="ambience", arithmetic="mma")
def fast_mode_left(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """Deterministic algorithms would be slow, so it turns them off."""
    torch.use_deterministic_algorithms(False)
    return sound(q, k, v, causal, scale, window, precision, ahead)


@mutant("makes its indices on the default device", family="ambience", caught_by="ambience", arithmetic="mma")
def mask_anywhere(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """The indices of the mask live where torch puts tensors by default."""
    first = torch.arange(q.shape[2])
    y, lse = sound(q, k, v, causal, scale, window, precision, ahead)
    return torch.where((first >= 0).to(q.device)[:, None], y, 0.0).to(q.dtype), lse


# state: Attention that takes keys for those of an earlier call.
# only: looks at values on the host, which a capture does not allow

_keys: dict[object, Pair] = {}
_last: dict[object, tuple[T, Pair]] = {}


@mutant("keys and values are kept by their address", family="state", caught_by="state")
def keys_by_address(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """A cache of keys and values, found by where k lies."""
    key = (k.data_ptr(), k.shape, v.shape, k.dtype)
    if key not in _keys:
        _keys.clear()
        _keys[key] = k.clone(), v.clone()
    return sound(q, *_keys[key], causal, scale, window, precision, ahead)


@mutant("looks for changes in q alone", family="state", caught_by="state", only="cpu")
def last_query(q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit) -> Pair:
    """The result is made anew when q differs from that of the call before, and only then."""
    key = (q.shape, k.shape, q.dtype, q.device, causal, scale, window)
    if key not in _last or not torch.equal(_last[key][0], q):
        _last[key] = q.clone(), sound(q, k, v, causal, scale, window, precision, ahead)
    y, lse = _last[key][1]
    return y.clone(), lse.clone()
