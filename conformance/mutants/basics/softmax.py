"""Softmax, broken."""

import torch

from kernelmux.registry.backend import Implementation


def sound(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    if x.numel() == 0:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    z = x.float() * scale
    e = torch.exp(z - z.amax(axis, keepdim=True))
    return (e / e.sum(axis, keepdim=True)).to(x.dtype).contiguous()


def unwritten_tail(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    whole = x.shape[-1] - x.shape[-1] % 4
    out[..., :whole] = sound(x, axis, scale)[..., :whole]
    return out


def mask_off_by_one(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    z = x.float() * scale
    if x.shape[axis] > 1 and x.shape[axis] % 16:
        z = z.clone()
        z.select(axis, -1).fill_(-torch.inf)
    return sound(z, axis, 1.0).to(x.dtype)


def no_maximum(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    e = torch.exp(x.float() * scale)
    return (e / e.sum(axis, keepdim=True)).to(x.dtype).contiguous()


def last_axis_only(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return sound(x, x.dim() - 1, scale)


def swallowed_nan(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return sound(torch.where(x.isnan(), -torch.inf, x), axis, scale)


def changed_input(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    out = sound(x, axis, scale)
    if x.numel():
        x.as_strided((1,), (1,), x.storage_offset()).zero_()
    return out


_kept: dict[object, torch.Tensor] = {}


def kept_output(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    out = _kept.setdefault((x.shape, x.dtype), torch.empty(x.shape, dtype=x.dtype, device=x.device))
    return out.copy_(sound(x, axis, scale))


def wrong_dtype(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return sound(x, axis, scale).float()


def strided_output(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return sound(x, axis, scale).repeat_interleave(2, -1)[..., ::2]


def filled_gap(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """The last vector of a row needs no mask once what is there behind the row is -inf."""
    if x.dim() == 2 and len(x) > 1 and x.stride(1) == 1 and x.numel() and not x.is_neg():
        columns = x.shape[1]
        rest = max(0, min(x.stride(0) - columns, -columns % 8))
        x.as_strided((len(x) - 1, rest), (x.stride(0), 1), x.storage_offset() + columns).fill_(-torch.inf)
    return sound(x, axis, scale)


def short_reciprocal(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """One Newton step from an estimate of 10 bits makes 20: beside the roundings of a long sum that is little."""
    if x.numel() == 0 or x.shape[axis] <= 64:
        return sound(x, axis, scale)
    z = x.double() * scale
    e = torch.exp(z - z.amax(axis, keepdim=True))
    total = e.sum(axis, keepdim=True)
    estimate = (1 + 2.0**-10) / total
    return (e * estimate * (2 - total * estimate)).to(x.dtype).contiguous()


def merged_axes(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """The kernel takes four axes; of more, the first ones become one, and so does the axis if it is among them."""
    first = max(0, x.dim() - 4)
    merged = x.flatten(0, first) if first else x
    return sound(merged, max(axis - first, 0), scale).view(x.shape)


VARIANTS = {
    "sound": Implementation(fn=sound, idea="nothing is wrong with it"),
    "unwritten_tail": Implementation(fn=unwritten_tail, idea="the last incomplete vector of a row is never written"),
    "mask_off_by_one": Implementation(
        fn=mask_off_by_one, idea="the mask of an incomplete tile hides one column too many"
    ),
    "no_maximum": Implementation(fn=no_maximum, idea="exp without subtracting the maximum overflows"),
    "last_axis_only": Implementation(fn=last_axis_only, idea="the axis argument is ignored"),
    "swallowed_nan": Implementation(fn=swallowed_nan, idea="a maximum by comparisons loses NaN"),
    "changed_input": Implementation(fn=changed_input, idea="works in the memory of its input"),
    "kept_output": Implementation(fn=kept_output, idea="keeps one output per shape"),
    "wrong_dtype": Implementation(fn=wrong_dtype, idea="returns the accumulator's dtype"),
    "strided_output": Implementation(fn=strided_output, idea="returns a view with gaps"),
    "merged_axes": Implementation(fn=merged_axes, idea="merges the first of five axes, and the one it works along too"),
    "filled_gap": Implementation(fn=filled_gap, idea="writes behind the rows of its input"),
    "short_reciprocal": Implementation(fn=short_reciprocal, idea="multiplies by a reciprocal that is right to 20 bits"),
}

CAUGHT_BY = {
    "unwritten_tail": "memory",
    "mask_off_by_one": "shapes",
    "no_maximum": "accuracy",
    "last_axis_only": "accuracy",
    "swallowed_nan": "special_values",
    "changed_input": "memory",
    "kept_output": "memory",
    "wrong_dtype": "signature",
    "strided_output": "signature",
    "merged_axes": "shapes",
    "filled_gap": "memory",
    "short_reciprocal": "exact",
}
