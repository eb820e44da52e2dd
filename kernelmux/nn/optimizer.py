"""AdamW."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import torch

LARGE = 1 << 16  # elements from which on a tensor has a launch of its own; smaller ones share those of torch
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
Tensors = list[torch.Tensor]
Row = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class AdamW(torch.optim.AdamW):
    """torch.optim.AdamW, same arguments and same state, which with fused=True moves tensors at the speed of memory.

    That goes for large contiguous tensors of one dtype on NVIDIA GPUs. Others are torch's, and so is a step with amsgrad,
    maximize, a tensor for lr, or a scale of the gradients.
    """

    def _init_group(self, group: dict[str, Any], *lists: Tensors) -> bool:
        """Fill the lists with what the step is for, as torch does; but what the kernel takes has its step here instead."""
        found: bool = super()._init_group(group, *lists)  # type: ignore[no-untyped-call]
        params, grads, means, squares, _, steps = lists
        if (
            not ours(group)
            or getattr(self, "grad_scale", None) is not None
            or getattr(self, "found_inf", None) is not None
        ):
            return found
        rows = list(zip(params, grads, means, squares, steps, strict=True))
        taken = [i for i, row in enumerate(rows) if fits(*row)]
        if taken:
            update(group, [rows[i] for i in taken])
            for tensors in (params, grads, means, squares, steps):
                tensors[:] = [x for i, x in enumerate(tensors) if i not in set(taken)]
        return found


def ours(group: dict[str, Any]) -> bool:
    """Whether the options of a group are those of the kernel."""
    plain = not (group["amsgrad"] or group["maximize"] or group["differentiable"])
    return (
        bool(group["fused"])
        and plain
        and not isinstance(group["lr"], torch.Tensor)
        and not torch.compiler.is_compiling()
    )


def fits(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor, step: torch.Tensor) -> bool:
    """Whether a parameter and its state are what the kernel takes."""
    if (
        p.numel() < LARGE
        or not p.is_cuda
        or p.device.index != torch.cuda.current_device()
        or p.dtype not in DTYPES
        or not step.is_cuda
        or not compiled()
    ):
        return False
    plain = all(x.__class__ in (torch.Tensor, torch.nn.Parameter) for x in (p, g, m, v))  # no shares of a mesh
    return plain and all(x.dtype == p.dtype and x.is_contiguous() for x in (p, g, m, v))


@cache
def compiled() -> bool:
    """Whether there is what compiles and loads kernels of CUDA C++."""
    return torch.version.cuda is not None and importlib.util.find_spec("cupy") is not None


def update(group: dict[str, Any], rows: list[Row]) -> None:
    """A step of the parameters, gradients, means, squares and counts in `rows`, in place."""
    from kernelmux.backends.cuda import _adamw

    steps = [row[4] for row in rows]
    torch._foreach_add_(steps, 1)
    (beta1, beta2), (lr, decay, eps) = group["betas"], (group[name] for name in ("lr", "weight_decay", "eps"))
    constants = _adamw.packed(lr, decay, beta1, beta2, eps)
    for row in rows:
        _adamw.adamw(*row, constants)
