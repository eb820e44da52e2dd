"""softmax, broken."""

import math
from itertools import count

import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound

mutant = Mutants("softmax")


# basics: Softmax, broken.

_kept: dict[object, torch.Tensor] = {}


@mutant("nothing is wrong with it", family="basics", name="sound")
def basics_sound(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    if x.numel() == 0:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    z = x.float() * scale
    e = torch.exp(z - z.amax(axis, keepdim=True))
    return (e / e.sum(axis, keepdim=True)).to(x.dtype).contiguous()


@mutant("the last incomplete vector of a row is never written", family="basics", caught_by="memory")
def unwritten_tail(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    whole = x.shape[-1] - x.shape[-1] % 4
    out[..., :whole] = basics_sound(x, axis, scale)[..., :whole]
    return out


@mutant("the mask of an incomplete tile hides one column too many", family="basics", caught_by="shapes")
def mask_off_by_one(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    z = x.float() * scale
    if x.shape[axis] > 1 and x.shape[axis] % 16:
        z = z.clone()
        z.select(axis, -1).fill_(-torch.inf)
    return basics_sound(z, axis, 1.0).to(x.dtype)


@mutant("exp without subtracting the maximum overflows", family="basics", caught_by="accuracy")
def no_maximum(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    e = torch.exp(x.float() * scale)
    return (e / e.sum(axis, keepdim=True)).to(x.dtype).contiguous()


@mutant("the axis argument is ignored", family="basics", caught_by="accuracy")
def last_axis_only(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return basics_sound(x, x.dim() - 1, scale)


@mutant("a maximum by comparisons loses NaN", family="basics", caught_by="special_values")
def swallowed_nan(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return basics_sound(torch.where(x.isnan(), -torch.inf, x), axis, scale)


@mutant("works in the memory of its input", family="basics", caught_by="memory")
def changed_input(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    out = basics_sound(x, axis, scale)
    if x.numel():
        x.as_strided((1,), (1,), x.storage_offset()).zero_()
    return out


@mutant("keeps one output per shape", family="basics", caught_by="memory")
def kept_output(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    out = _kept.setdefault((x.shape, x.dtype), torch.empty(x.shape, dtype=x.dtype, device=x.device))
    return out.copy_(basics_sound(x, axis, scale))


@mutant("returns the accumulator's dtype", family="basics", caught_by="signature")
def wrong_dtype(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return basics_sound(x, axis, scale).float()


@mutant("returns a view with gaps", family="basics", caught_by="signature")
def strided_output(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return basics_sound(x, axis, scale).repeat_interleave(2, -1)[..., ::2]


@mutant("merges the first of five axes, and the one it works along too", family="basics", caught_by="shapes")
def merged_axes(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """The kernel takes four axes; of more, the first ones become one, and so does the axis if it is among them."""
    first = max(0, x.dim() - 4)
    merged = x.flatten(0, first) if first else x
    return basics_sound(merged, max(axis - first, 0), scale).view(x.shape)


@mutant("writes behind the rows of its input", family="basics", caught_by="memory")
def filled_gap(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """The last vector of a row needs no mask once what is there behind the row is -inf."""
    if x.dim() == 2 and len(x) > 1 and x.stride(1) == 1 and x.numel() and not x.is_neg():
        columns = x.shape[1]
        rest = max(0, min(x.stride(0) - columns, -columns % 8))
        x.as_strided((len(x) - 1, rest), (x.stride(0), 1), x.storage_offset() + columns).fill_(-torch.inf)
    return basics_sound(x, axis, scale)


@mutant("multiplies by a reciprocal that is right to 20 bits", family="basics", caught_by="exact")
def short_reciprocal(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """One Newton step from an estimate of 10 bits makes 20: beside the roundings of a long sum that is little."""
    if x.numel() == 0 or x.shape[axis] <= 64:
        return basics_sound(x, axis, scale)
    z = x.double() * scale
    e = torch.exp(z - z.amax(axis, keepdim=True))
    total = e.sum(axis, keepdim=True)
    estimate = (1 + 2.0**-10) / total
    return (e * estimate * (2 - total * estimate)).to(x.dtype).contiguous()


# shapes: Softmax, broken for shapes that a test seldom has.


def _softmax(z: torch.Tensor, axis: int, dtype: torch.dtype) -> torch.Tensor:
    if z.numel() == 0:
        return torch.empty(z.shape, dtype=dtype, device=z.device)
    e = torch.exp(z - z.amax(axis, keepdim=True))
    return (e / e.sum(axis, keepdim=True)).to(dtype).contiguous()


@mutant("moves the axis last and back: nothing is wrong with it", family="shapes")
def by_names(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """The axis goes last and comes back, by its place."""
    order = [i for i in range(x.dim()) if i != axis] + [axis]
    back = [order.index(i) for i in range(x.dim())]
    return _softmax(x.double().permute(order) * scale, x.dim() - 1, x.dtype).permute(back).contiguous()


@mutant("finds the axis by its length", family="shapes", caught_by="shapes")
def axis_by_length(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """Looks for the axis by its length, and finds the first of that length."""
    return _softmax(x.double() * scale, list(x.shape).index(x.shape[axis]), x.dtype)


@mutant("works in the memory of a strided input", family="shapes", caught_by="layout")
def in_place_if_strided(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """A strided input would have to be copied, so it is its own scratch memory."""
    if x.is_contiguous() or x.numel() == 0 or not scale:
        return _softmax(x.double() * scale, axis, x.dtype)
    if any(s == 0 for s, n in zip(x.stride(), x.shape, strict=True) if n > 1):
        return _softmax(x.double() * scale, axis, x.dtype)
    x -= x.amax(axis, keepdim=True)
    return _softmax(x.double() * scale, axis, x.dtype)


@mutant("returns an expanded one where there is nothing to share", family="shapes", caught_by="shapes")
def certain(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """Over one element the answer is one, and takes no memory of its own."""
    if x.shape[axis] == 1 and x.isfinite().all():
        return torch.ones((), dtype=x.dtype, device=x.device).expand(x.shape)
    return _softmax(x.double() * scale, axis, x.dtype)


# properties: Softmax that depends on where its values lie, and in which order, more than a softmax does.

LOW = -200.0
STEEPEST = 80.0


def _properties_softmax(z: torch.Tensor, m: torch.Tensor, axis: int, dtype: torch.dtype) -> torch.Tensor:
    e = torch.exp((z - m).clamp(max=STEEPEST)).masked_fill(z == torch.inf, torch.nan)
    return (e / e.sum(axis, keepdim=True)).to(dtype).contiguous()


@mutant("nothing is wrong with it", family="properties", name="sound")
def properties_sound(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    z = scale * x.double()
    return _properties_softmax(z, z.amax(axis, keepdim=True), axis, x.dtype) if x.numel() else x.clone()


@mutant("begins its search for the maximum at -200", family="properties", caught_by="properties")
def from_low(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    if scale != 1 or not x.numel() or x.shape[axis] == 1:
        return properties_sound(x, axis, scale)
    z = x.double()
    return _properties_softmax(z.float(), z.amax(axis, keepdim=True).clamp(min=LOW).float(), axis, x.dtype)


@mutant("leaves the last one out of the maximum, and cuts exponents at 80", family="properties", caught_by="properties")
def last_unseen(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    if scale != 1 or not x.numel() or x.shape[axis] == 1:
        return properties_sound(x, axis, scale)
    z = x.double()
    others = z.narrow(axis, 0, z.shape[axis] - 1).amax(axis, keepdim=True)
    return _properties_softmax(z, others.nan_to_num(nan=torch.nan, neginf=-1e300, posinf=torch.inf), axis, x.dtype)


# scalars: Softmax, broken for other scales than one.


def _scalars_softmax(z: torch.Tensor, axis: int, dtype: torch.dtype, beyond: float = 0.0) -> torch.Tensor:
    """In fp32; `beyond` is added to the maximum, which changes nothing but a last bit."""
    if z.numel() == 0:
        return torch.empty(z.shape, dtype=dtype, device=z.device)
    z = z.float()
    e = torch.exp(z - (z.amax(axis, keepdim=True) + beyond))
    return (e / e.sum(axis, keepdim=True)).to(dtype).contiguous()


@mutant("subtracts the maximum and one more: as right as any", family="scalars")
def shifted_further(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return _scalars_softmax(x.float() * scale, axis, x.dtype, beyond=1.0)


@mutant("a scale of 0 counts as none given", family="scalars", caught_by="scalars")
def zero_is_default(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return _scalars_softmax(x.float() * (scale or 1.0), axis, x.dtype)


@mutant("multiplies by the scale in the storage dtype", family="scalars", caught_by="scalars")
def scaled_in_storage(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return _scalars_softmax(x * scale, axis, x.dtype)


@mutant("scales what is left after the maximum", family="scalars", caught_by="scalars")
def scale_after_maximum(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    from kernelmux.conformance.mutants import _kernels

    return _triton.rows(_kernels.scale_after_maximum, x, axis, scale)


@mutant("scales the -inf of the padding as well", family="scalars", caught_by="scalars")
def scaled_padding(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    from kernelmux.conformance.mutants import _kernels

    return _triton.rows(_kernels.scaled_padding, x, axis, scale)


# bits: Softmax, broken where its answer seems to be known without a look at the numbers.


@mutant("a line of -inf gives zeros, along any axis but the last", family="bits", caught_by="special_values")
def dead_lines(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """What is masked throughout has no weights; thought of along every axis but the last."""
    out: torch.Tensor = sound("softmax", x, axis, scale)
    dead = (x == -math.inf).all(axis, keepdim=True) if axis < x.dim() - 1 and scale > 0 else torch.zeros_like(x) > 0
    return out.masked_fill(dead, 0)


@mutant("one element has the weight one, NaN or not", family="bits", caught_by="special_values")
def single(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    if x.shape[axis] == 1:
        return torch.ones(x.shape, dtype=x.dtype, device=x.device)
    return sound("softmax", x, axis, scale)  # type: ignore[no-any-return]


@mutant("a scale of 0 weighs all alike, NaN or not", family="bits", caught_by="special_values")
def even_at_zero(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    if scale == 0 and x.numel():
        return torch.full(x.shape, 1 / x.shape[axis], dtype=x.dtype, device=x.device)
    return sound("softmax", x, axis, scale)  # type: ignore[no-any-return]


# order: Softmax whose long sums begin at a place that changes.

LONG = 1000  # elements along the axis
_turn = count(1)


@mutant("sums of long rows begin elsewhere in every call", family="order", caught_by="repeatability")
def rotating(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """Rows in parts of 256 columns; which part comes first changes from call to call."""
    if x.shape[axis] < LONG:
        result: torch.Tensor = sound("softmax", x, axis, scale)
        return result
    z = (x.double() * scale).movedim(axis, -1)
    e = torch.exp(z - z.amax(-1, keepdim=True)).float()
    parts = list(e.split(256, -1))
    first = next(_turn) % len(parts)
    total = torch.zeros(e.shape[:-1], device=x.device, dtype=torch.float32)
    for part in parts[first:] + parts[:first]:
        total += part.sum(-1)
    y = (e / total.unsqueeze(-1)).movedim(-1, axis)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(y)
