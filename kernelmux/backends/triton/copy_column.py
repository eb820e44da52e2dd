"""copy_column: y[m] = x[m, column], from a matrix in pinned host memory straight into device memory.

Pinned memory has a device address, so a kernel loads across the bus just the elements it wants: nothing is staged on
the host. Each element costs a 32-byte sector of bus traffic, and many must be under way at once to hide its latency.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch.launch import Launch, cdiv, plan
from kernelmux.registry.backend import Implementation


@triton.jit
def copy_column_zero_copy_kernel(y_ptr, x_ptr, M, stride_xm, BLOCK_M: tl.constexpr):
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    mask_m = offs_m < M
    column = tl.load(x_ptr + offs_m.to(tl.int64) * stride_xm, mask=mask_m)
    tl.store(y_ptr + offs_m, column, mask=mask_m)


def copy_column_zero_copy(x: torch.Tensor, column: int) -> torch.Tensor:
    device = torch.device("cuda", torch.cuda.current_device()) if x.is_pinned() else x.device
    y = torch.empty(x.shape[0], dtype=x.dtype, device=device)
    if len(y):
        _plan(len(y), x.stride(0))(y, x[:, column])
    return y


@plan
def _plan(M: int, stride_xm: int) -> Launch:
    return Launch(copy_column_zero_copy_kernel, (cdiv(M, 256),), M, stride_xm, BLOCK_M=256, num_warps=8)


VARIANTS = {
    "zero_copy": Implementation(fn=copy_column_zero_copy, idea="one thread per element loads from the pinned matrix"),
}
