"""Rotary embedding on CUDA: 16 bytes per access, cos and sin read once for several heads."""

import struct
from math import gcd

import torch

from kernelmux.backends.cuda._families.elementwise import Strides, common_width
from kernelmux.backends.cuda._launch.runtime import FEW_BLOCKS, BoundLaunch, Source, cdiv, ctype
from kernelmux.registry.backend import Implementation
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__)
_BLOCK = 128
# Of a thread. H200, bf16, us, 4x28x3000x128 and 1x32x10000x112: 45.1 and 42.3, two heads 45.8 and 43.4, four and counts of
# 64 bits 46.9 and 46.0.
_HEADS = 1
_SIGNATURE = "x* cos* sin* y* steps:struct units:i64 pairs:i32 rows:i64 heads:i32 groups:i32"


def rope_heads(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if y.numel():
        steps = x.stride()[:3], (0, *cos.stride())[-3:-1], (0, *sin.stride())[-3:-1]
        width = gcd(common_width((x, cos, sin)), x.shape[3] // 2, *(s for strides in steps for s in strides))
        launch, packed = _plan(tuple(x.shape), steps, x.dtype, width, interleaved)
        launch(x, cos, sin, y, packed)
    return y


@remembered
def _plan(
    shape: Strides, steps: tuple[Strides, ...], dtype: torch.dtype, width: int, interleaved: bool
) -> tuple[BoundLaunch, bytes]:
    batch, heads, rows, columns = shape
    together = min(_HEADS, heads)
    groups, pairs = cdiv(heads, together), columns // 2
    units = batch * groups * rows * (pairs // width)
    follows = cdiv(units, _BLOCK) <= FEW_BLOCKS
    kernel = SOURCE.kernel(
        "rope_heads", _SIGNATURE, ELEMENT=ctype(dtype), WIDTH=width, HEADS=together, NEIGHBOURS=int(interleaved),
        BLOCK=_BLOCK, INDEX="int" if units + _BLOCK < 2**31 else "i64", FOLLOWS=int(follows),
    )  # fmt: skip
    launch = kernel.bind(cdiv(units, _BLOCK), _BLOCK, units, pairs, rows, heads, groups, follows=follows)
    return launch, struct.pack("7q", *(s for strides in steps for s in strides))


VARIANTS = {
    "heads": Implementation(
        rope_heads,
        "16 bytes per access; cos and sin are read once for several heads",
        layout=dict.fromkeys(("x", "cos", "sin"), "last"),
    )
}
