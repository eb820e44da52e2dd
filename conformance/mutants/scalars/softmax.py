"""Softmax, broken for other scales than one."""

import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.registry.backend import Implementation


def _softmax(z: torch.Tensor, axis: int, dtype: torch.dtype, beyond: float = 0.0) -> torch.Tensor:
    """In fp32; `beyond` is added to the maximum, which changes nothing but a last bit."""
    if z.numel() == 0:
        return torch.empty(z.shape, dtype=dtype, device=z.device)
    z = z.float()
    e = torch.exp(z - (z.amax(axis, keepdim=True) + beyond))
    return (e / e.sum(axis, keepdim=True)).to(dtype).contiguous()


def shifted_further(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return _softmax(x.float() * scale, axis, x.dtype, beyond=1.0)


def zero_is_default(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return _softmax(x.float() * (scale or 1.0), axis, x.dtype)


def scaled_in_storage(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    return _softmax(x * scale, axis, x.dtype)


def scale_after_maximum(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    from kernelmux.conformance.mutants.scalars import _kernels

    return _triton.rows(_kernels.scale_after_maximum, x, axis, scale)


def scaled_padding(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    from kernelmux.conformance.mutants.scalars import _kernels

    return _triton.rows(_kernels.scaled_padding, x, axis, scale)


VARIANTS = {
    "shifted_further": Implementation(fn=shifted_further, idea="subtracts the maximum and one more: as right as any"),
    "zero_is_default": Implementation(fn=zero_is_default, idea="a scale of 0 counts as none given"),
    "scaled_in_storage": Implementation(fn=scaled_in_storage, idea="multiplies by the scale in the storage dtype"),
    "scale_after_maximum": Implementation(fn=scale_after_maximum, idea="scales what is left after the maximum"),
    "scaled_padding": Implementation(fn=scaled_padding, idea="scales the -inf of the padding as well"),
}

CAUGHT_BY = {
    "zero_is_default": "scalars",
    "scaled_in_storage": "scalars",
    "scale_after_maximum": "scalars",
    "scaled_padding": "scalars",
}
