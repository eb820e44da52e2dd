"""The largest or the smallest element over one axis or over all of them, by torch's function of it."""

from collections.abc import Callable

import torch

from kernelmux.registry.backend import Implementation


def extremum_variant(function: Callable[..., torch.Tensor]) -> dict[str, Implementation]:
    """torch.amax or torch.amin as one variant."""

    def extremum(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
        return function(x, dim=() if axis is None else axis, keepdim=keepdim)

    return {"plain": Implementation(fn=extremum, idea=f"torch.{function.__name__}")}
