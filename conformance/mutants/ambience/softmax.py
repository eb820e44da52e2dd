"""Softmax, dependent on what is set around it."""

import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.registry.backend import Implementation


def _softmax(z: torch.Tensor, top: torch.Tensor, axis: int, dtype: torch.dtype) -> torch.Tensor:
    e = torch.exp(z - top)
    return (e / e.sum(axis, keepdim=True)).to(dtype).contiguous()


def own_generator(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """Draws from torch's generator and puts it back as it was: allowed, if odd."""
    if x.numel() == 0:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(0)
    warm = torch.rand(4, dtype=torch.float32, device="cpu").sum().item() * 0.0
    torch.set_rng_state(before)
    z = x.double() * scale + warm
    return _softmax(z, z.amax(axis, keepdim=True), axis, x.dtype)


def usual_dtype(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """Computes in torch's default dtype, which is fp32 as long as nothing else was set."""
    if x.numel() == 0:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    z = x.to(torch.get_default_dtype()) * scale
    return _softmax(z, z.amax(axis, keepdim=True), axis, x.dtype)


def usual_scratch(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    """The maxima of the rows go through a buffer of torch's default dtype."""
    from kernelmux.conformance.mutants.ambience import _kernels

    moved = x.movedim(axis, -1).contiguous()
    n = moved.shape[-1]
    if x.numel() == 0:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    top = torch.empty(moved.numel() // n, device=x.device)
    _triton.launch(_kernels.row_maximum, top.numel(), top, moved, scale, n, BLOCK=_triton.power_of_two(n))
    z = moved.float() * scale
    out = _softmax(z, top.reshape(*moved.shape[:-1], 1), -1, x.dtype)
    return out.movedim(-1, axis).contiguous()


VARIANTS = {
    "own_generator": Implementation(fn=own_generator, idea="draws numbers and leaves the generator as it was"),
    "usual_dtype": Implementation(fn=usual_dtype, idea="computes in the default dtype"),
    "usual_scratch": Implementation(fn=usual_scratch, idea="keeps the maxima in a buffer of the default dtype"),
}

CAUGHT_BY = {"usual_dtype": "ambience", "usual_scratch": "ambience"}
