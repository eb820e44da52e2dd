"""conv2d with kernels of single elements, and the gradient of its images: products of matrices where these lie.

Contiguous images [N, C, H, W] are matrices [C, H * W], by which a weight [O, C] is multiplied: a batch of products with one
left factor.
"""

from __future__ import annotations

import torch

from kernelmux.backends.triton.conv2d._problem import VECTOR
from kernelmux.backends.triton.matmul import RUNGS
from kernelmux.backends.triton.matmul._epilogue import PLAIN
from kernelmux.backends.triton.matmul._padded import readable
from kernelmux.registry.conditions import AtLeast, Capability, Condition, Dtypes
from kernelmux.registry.spec.sliding_windows import NoBias, Pointwise

_ROWS, _LEAST = 64, 16  # that tiles read by the copy engine have at least


def product(weight: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """weight [O, C] by images [N, C, H, W]: [N, O, H, W]."""
    n, _, rows, columns = images.shape
    weight = weight if 1 in weight.stride() else weight.contiguous()
    a, b = weight.expand(n, *weight.shape), images.flatten(2)
    whole = readable(a) and readable(b) and b.shape[2] % VECTOR == 0
    large = len(weight) >= _ROWS and min(b.shape[1:]) >= _LEAST
    rung = RUNGS["padded" if not whole else "specialised" if large else "by_shape"]
    return rung.fn(a, b, "ieee", PLAIN).view(n, len(weight), rows, columns)


def requires(images: str) -> tuple[Condition, ...]:
    """What a call must meet. images: the name of those that are read."""
    halves = Capability((9, 0), below=(10, 0)), Dtypes(images, torch.float16, torch.bfloat16)
    return (*halves, *(AtLeast(axis, 1) for axis in "NCO"), NoBias(), Pointwise(images))
