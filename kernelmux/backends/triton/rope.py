"""rope: pairs of columns turned by the angle of their row, in fp32, rounded once; cos and sin are read for some heads."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._launch.dependent import follow_previous, following
from kernelmux.backends.triton._launch.launch import Launch, cdiv, plan
from kernelmux.backends.triton._launch.strides import Ints
from kernelmux.backends.triton._rows.rows import next_power
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import AtMost

# Of a program: pairs of a head, and heads at most, which are asked for at once. H200, bf16, us, 4x28x3000x128,
# 1x32x10000x112 and 8x8x4096x64: 45.3, 43.2 and 21.1, twice as many of both 45.9, 44.6 and 21.7, and those one head
# after the other 46.6, 43.3 and 21.8.
PAIRS, HEADS = 512, 2
COLUMNS = 32768  # of a head, which a program has whole: Triton compiles that for 5 s, and the double for 15


@triton.jit
def rope_kernel(
    y_ptr, x_ptr, cos_ptr, sin_ptr, H, M, groups, x_strides, cos_strides, sin_strides,
    PAIRS: tl.constexpr, NEIGHBOURS: tl.constexpr, HEADS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_E: tl.constexpr,
    FOLLOWS: tl.constexpr = False,
):  # fmt: skip
    """PAIRS: columns of cos. strides: of b, h, m, d for x, of b, m, e for cos and sin; y is contiguous."""
    follow_previous(FOLLOWS)
    blocks = tl.cdiv(M, BLOCK_M)
    m = ((tl.program_id(0) % blocks).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M))[None, :, None]
    rest = tl.program_id(0) // blocks
    b = (rest // groups).to(tl.int64)
    h = ((rest % groups).to(tl.int64) * HEADS + tl.arange(0, HEADS))[:, None, None]
    e = tl.arange(0, BLOCK_E)[None, None, :]
    mask = (m < M) & (e < PAIRS)  # [1, BLOCK_M, BLOCK_E]
    c = tl.load(cos_ptr + (b * cos_strides[0] + m * cos_strides[1] + e * cos_strides[2]), mask=mask).to(tl.float32)
    s = tl.load(sin_ptr + (b * sin_strides[0] + m * sin_strides[1] + e * sin_strides[2]), mask=mask).to(tl.float32)
    x_row = x_ptr + (b * x_strides[0] + h * x_strides[1] + m * x_strides[2])
    y_row = y_ptr + ((b * H + h) * M + m) * (2 * PAIRS)
    if NEIGHBOURS:
        d = tl.arange(0, 2 * BLOCK_E)[None, None, :]
        both = (h < H) & (m < M) & (d < 2 * PAIRS)
        pair = tl.load(x_row + d * x_strides[3], mask=both).to(tl.float32)
        first, second = tl.split(tl.reshape(pair, [HEADS, BLOCK_M, BLOCK_E, 2]))
        turned = tl.join(first * c - second * s, second * c + first * s)
        turned = tl.reshape(turned, [HEADS, BLOCK_M, 2 * BLOCK_E])
        tl.store(y_row + d, turned.to(y_ptr.dtype.element_ty), mask=both)
    else:
        there = (h < H) & mask
        first = tl.load(x_row + e * x_strides[3], mask=there).to(tl.float32)
        second = tl.load(x_row + (e + PAIRS) * x_strides[3], mask=there).to(tl.float32)
        tl.store(y_row + e, (first * c - second * s).to(y_ptr.dtype.element_ty), mask=there)
        tl.store(y_row + (e + PAIRS), (second * c + first * s).to(y_ptr.dtype.element_ty), mask=there)


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if y.numel():
        tables = [(0, *t.stride())[-3:] for t in (cos, sin)]
        _plan(x.shape, x.stride(), *tables, interleaved, x.get_device())(y, x, cos, sin)
    return y


@plan
def _plan(shape: Ints, strides: Ints, cos_strides: Ints, sin_strides: Ints, interleaved: bool, device: int) -> Launch:
    B, H, M, D = shape
    block_e = next_power(D // 2)
    block_m = min(max(PAIRS // block_e, 1), next_power(M))
    heads = min(HEADS, next_power(H))
    groups = cdiv(H, heads)
    programs = cdiv(M, block_m) * B * groups
    return Launch(
        rope_kernel, (programs,), H, M, groups, strides, cos_strides, sin_strides,
        PAIRS=D // 2, NEIGHBOURS=interleaved, HEADS=heads, BLOCK_M=block_m, BLOCK_E=block_e, num_warps=4,
        **following(device, programs),
    )  # fmt: skip


IDEA = "cos and sin are read once for several heads"
VARIANTS = {"heads": Implementation(fn=rope, idea=IDEA, requires=(AtMost("D", COLUMNS),))}
