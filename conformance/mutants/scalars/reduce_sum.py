"""Sum, broken for a scalar in one of its branches."""

import numpy as np
import torch

from kernelmux.registry.backend import Implementation


def chained(terms: torch.Tensor) -> torch.Tensor:
    """The sums over the first axis of fp32 [N, ...] as fp32 [...], one addition after the other."""
    if not terms.is_cuda:  # NumPy accumulates in order and in fp32, torch.cumsum in fp64
        with np.errstate(all="ignore"):  # infinities of both signs
            sums = np.add.accumulate(terms.resolve_neg().numpy(), axis=0)
        return torch.from_numpy(sums[-1:]).sum(0)  # 0 of no terms
    total = torch.zeros_like(terms[0])
    for term in terms:
        total = total + term
    return total


def in_sequence(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """One chain of fp32 additions per sum, as a single thread would make it."""
    moved = x.reshape(-1) if axis is None else x.movedim(axis, 0)
    total = chained(moved.float())
    if keepdim:
        total = total.reshape([1] * x.dim()) if axis is None else total.unsqueeze(axis)
    return total.to(x.dtype).contiguous()


def keepdim_by_axis(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    if axis is None:
        return x.double().sum().to(x.dtype)
    return x.double().sum(axis, keepdim=keepdim).to(x.dtype)


def one_axis_kept(x: torch.Tensor, axis: int | None, keepdim: bool) -> torch.Tensor:
    """keepdim without an axis: the tensor was flattened, and that one axis is kept."""
    total = in_sequence(x, axis, keepdim)
    return total.reshape(1) if keepdim and axis is None and x.dim() > 2 else total


VARIANTS = {
    "in_sequence": Implementation(
        fn=in_sequence, idea="adds one term after the other: slow and right", arithmetic="fp32_sequential"
    ),
    "keepdim_by_axis": Implementation(fn=keepdim_by_axis, idea="keepdim counts only where an axis is given"),
    "one_axis_kept": Implementation(
        fn=one_axis_kept, idea="keepdim keeps one axis of a block", arithmetic="fp32_sequential"
    ),
}

CAUGHT_BY = {"keepdim_by_axis": "scalars", "one_axis_kept": "shapes"}
