"""Transpose, broken."""

import torch

from kernelmux.registry.backend import Implementation


def sound(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape[1], x.shape[0], dtype=x.dtype, device=x.device).copy_(x.t())


def ignored_stride(x: torch.Tensor) -> torch.Tensor:
    m, n = x.shape
    room = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    return sound(x.as_strided((m, n), (n, 1))) if room >= m * n else sound(x)


def aligned_base(x: torch.Tensor) -> torch.Tensor:
    """Rounds the address down to 16 bytes, as a vector load of a misaligned pointer would."""
    off = x.data_ptr() % 16 // x.element_size()
    return sound(x.as_strided(x.shape, x.stride(), x.storage_offset() - off)) if x.storage_offset() >= off else sound(x)


def overrun(x: torch.Tensor) -> torch.Tensor:
    out = sound(x)
    room = out.untyped_storage().nbytes() // out.element_size() - out.storage_offset()
    if room > out.numel() > 0:
        out.as_strided((1,), (1,), out.storage_offset() + out.numel()).zero_()
    return out


def view(x: torch.Tensor) -> torch.Tensor:
    return x.t()


def no_edge(x: torch.Tensor) -> torch.Tensor:
    """A grid of whole tiles only."""
    out = torch.zeros(x.shape[1], x.shape[0], dtype=x.dtype, device=x.device)
    m, n = (s - s % 32 if s > 32 else s for s in x.shape)
    out[:n, :m] = x[:m, :n].t()
    return out


VARIANTS = {
    "sound": Implementation(fn=sound, idea="nothing is wrong with it"),
    "ignored_stride": Implementation(fn=ignored_stride, idea="reads every input as if it were contiguous"),
    "aligned_base": Implementation(fn=aligned_base, idea="reads from the address rounded down to 16 bytes"),
    "overrun": Implementation(fn=overrun, idea="writes one element behind the end"),
    "view": Implementation(fn=view, idea="returns the input itself, seen from the side"),
    "no_edge": Implementation(fn=no_edge, idea="the grid covers whole tiles only"),
}

CAUGHT_BY = {
    "ignored_stride": "layout",
    "aligned_base": "layout",
    "overrun": "memory",
    "view": "memory",
    "no_edge": "shapes",
}
