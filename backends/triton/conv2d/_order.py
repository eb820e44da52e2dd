"""Images and kernels in the other order of memory, where the copy engine or the caller wants that one."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch import Config, Launch, cdiv, plan, processors
from kernelmux.backends.triton._rows import next_power

BLOCK = 128  # channels and places of a tile, which is turned in shared memory
PROGRAMS = 6  # that an SM has shared memory for


@triton.jit
def conv2d_order_kernel(
    y_ptr, x_ptr, images, C, P, x_n, x_c, x_p, y_n, y_c, y_p, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr
):  # fmt: skip
    """x to y, both [N C P] of strides n, c and p, of which one is 1."""
    tiles_p = tl.cdiv(P, BLOCK_P)
    tiles = tl.cdiv(C, BLOCK_C) * tiles_p
    for index in range(tl.program_id(0), images * tiles, tl.num_programs(0)):
        n = (index // tiles).to(tl.int64)
        tile = index % tiles
        c = (tile // tiles_p * BLOCK_C + tl.arange(0, BLOCK_C)).to(tl.int64)[:, None]
        p = (tile % tiles_p * BLOCK_P + tl.arange(0, BLOCK_P)).to(tl.int64)[None, :]
        inside = (c < C) & (p < P)
        x = tl.load(x_ptr + n * x_n + (c * x_c + p * x_p), mask=inside)
        tl.store(y_ptr + n * y_n + (c * y_c + p * y_p), x, mask=inside)


@plan
def _plan(device: int, images: int, channels: int, places: int, last: bool) -> Launch:
    """The launch, of y and x. last: of channels-last images y from contiguous ones x, otherwise the reverse."""
    block: Config = {"BLOCK_C": min(BLOCK, next_power(channels)), "BLOCK_P": min(BLOCK, next_power(places))}
    tiles = images * cdiv(channels, block["BLOCK_C"]) * cdiv(places, block["BLOCK_P"])
    size, first, second = channels * places, (places, 1), (1, channels)
    strides = (size, *first, size, *second) if last else (size, *second, size, *first)
    programs = min(PROGRAMS * processors(device), tiles)
    return Launch(conv2d_order_kernel, (programs,), images, channels, places, *strides, **block, num_warps=8)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    """A channels-last copy."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    if x.is_contiguous():
        _plan(x.get_device(), len(x), x.shape[1], x.shape[2] * x.shape[3], True)(y, x)
    else:
        y.copy_(x)
    return y


def channels_first(x: torch.Tensor) -> torch.Tensor:
    """Channels-last images without gaps as contiguous ones: themselves where they are both."""
    if x.is_contiguous() or not x.numel():
        return x.contiguous()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _plan(x.get_device(), len(x), x.shape[1], x.shape[2] * x.shape[3], False)(y, x)
    return y
