"""Launches the Triton kernel of a mutant: on the GPU for CUDA tensors, on the emulator for CPU tensors."""

from __future__ import annotations

from typing import Any

import torch

from kernelmux import emulator
from kernelmux.registry.conditions import AtMost

BLOCK = 128
IN_A_BLOCK = AtMost("N", 4096)  # of kernels that hold a row in one block: 65,536 elements take a minute to compile


def launch(kernel: Any, programs: int, *args: Any, **meta: Any) -> None:
    """Run `kernel` in that many programs; the first argument is a tensor."""
    with torch.cuda.device(args[0].device) if args[0].is_cuda else emulator.triton_active():
        kernel[(programs,)](*args, **meta)


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n, at least 16."""
    return max(16, 1 << max(n - 1, 0).bit_length())


def flat(kernel: Any, *tensors: torch.Tensor) -> torch.Tensor:
    """An elementwise kernel(out, *inputs, numel, BLOCK) on contiguous copies of its inputs; a fresh output like them."""
    tensors = tuple(t.contiguous() for t in tensors)
    out = torch.empty(tensors[0].shape, dtype=tensors[0].dtype, device=tensors[0].device)
    if out.numel():
        launch(kernel, -(-out.numel() // BLOCK), out, *tensors, out.numel(), BLOCK=BLOCK)
    return out


def rows(kernel: Any, x: torch.Tensor, axis: int, *args: Any, **meta: Any) -> torch.Tensor:
    """A kernel(out, x, *args, columns, BLOCK, **meta) with a program per row along an axis; a fresh output like x."""
    moved = x.movedim(axis, -1).contiguous()
    out = torch.empty(moved.shape, dtype=x.dtype, device=x.device)
    n = moved.shape[-1]
    if out.numel():
        launch(kernel, out.numel() // n, out, moved, *args, n, BLOCK=power_of_two(n), **meta)
    return out.movedim(-1, axis).contiguous()
