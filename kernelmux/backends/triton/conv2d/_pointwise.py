"""conv2d with kernels of single elements, and the gradient of its images: products of matrices where these lie.

Contiguous images [N, C, H, W] are matrices [C, H * W], by which a weight [O, C] is multiplied: a batch of products with one
left factor, or, by the kernel of `_specialised`, places along rows with a bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelmux.backends.triton._launch.launch import cdiv
from kernelmux.backends.triton.conv2d._order import readable
from kernelmux.backends.triton.conv2d._problem import VECTOR, ConvolutionProblem, Images, images, planes
from kernelmux.backends.triton.conv2d._specialised import specialised
from kernelmux.backends.triton.matmul import RUNGS
from kernelmux.backends.triton.matmul._epilogue import PLAIN
from kernelmux.backends.triton.matmul._padded import readable as lines_readable
from kernelmux.registry.conditions import AtLeast, Capability, Condition, Dtypes
from kernelmux.registry.spec import Call
from kernelmux.registry.spec.sliding_windows import Pointwise, Window

SINGLE = Window(1, 1, 0)
_ROWS, _LEAST = 64, 16  # that tiles read by the copy engine have at least
_WIDE = 256  # pixels of a tile of a large product


def product(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """weight [O, C] by images x [N, C, H, W]: [N, O, H, W]."""
    n, _, rows, columns = x.shape
    weight = weight if 1 in weight.stride() else weight.contiguous()
    a, b = weight.expand(n, *weight.shape), x.flatten(2)
    whole = lines_readable(a) and lines_readable(b) and b.shape[2] % VECTOR == 0
    large = len(weight) >= _ROWS and min(b.shape[1:]) >= _LEAST
    rung = RUNGS["padded" if not whole else "specialised" if large else "by_shape"]
    return rung.fn(a, b, "ieee", PLAIN).view(n, len(weight), rows, columns)


def by_rows(weight: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """conv2d of images that have `whole_rows`."""
    (n, c, h, w), right = x.shape, readable(weight)
    y = x.new_empty(n, len(weight), h, w)
    left = Images((n, c, 1, h * w), (x.stride(0), x.stride(1), h * w, 1))
    seen = left, planes((n, len(weight), 1, h * w)), images(right)
    p = ConvolutionProblem(x.get_device(), x.dtype, *seen, (SINGLE, SINGLE), bias is not None)
    specialised(p, after=right is not weight)(y, x, right, right, y if bias is None else bias)
    return y


def convolution(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """conv2d. H200, us, by rows and as a batch, whose tiles of 256 pixels hold a third more than there are: 1024 of
    32x256x28x28 35.9 and 40.9. Without that a batch is faster: 2048 of 12x512x28x142 182 and 189."""
    pixels = x.shape[2] * x.shape[3]
    if bias is not None or (whole_rows(x) and cdiv(pixels, _WIDE) * _WIDE > 1.1 * pixels):
        return by_rows(weight, x, bias)
    return product(weight[:, :, 0, 0], x)


def whole_rows(x: torch.Tensor) -> bool:
    """Whether the copy engine can read dense images as rows of pixels."""
    n, c, h, w = x.shape
    apart = [s for s, count in ((x.stride(0), n), (x.stride(1), c)) if count > 1]
    return not (h * w % VECTOR or any(s % VECTOR or s <= 0 for s in apart) or x.data_ptr() % 16)


@dataclass(frozen=True)
class WholeRowsOrNoBias:
    """A bias is added where rows of pixels are whole vectors."""

    images: str
    text: str = "no bias, or pixels of an image that are whole vectors"

    def check(self, call: Call) -> str | None:
        """None, or that they are not."""
        fits = call.arguments.get("bias") is None or whole_rows(call.arguments[self.images])
        return None if fits else f"needs {self.text}"


def requires(images: str) -> tuple[Condition, ...]:
    """What a call must meet. images: the name of those that are read."""
    halves = Capability((9, 0), below=(10, 0)), Dtypes(images, torch.float16, torch.bfloat16)
    return (*halves, *(AtLeast(axis, 1) for axis in "NCO"), WholeRowsOrNoBias(images), Pointwise(images))
