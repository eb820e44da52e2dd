"""conv2d_backward_input, broken."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.registry.ops.conv2d_backward_input import reference
from kernelmux.registry.util.memory_format import format_of

mutant = Mutants("conv2d_backward_input")


# basics: Gradient of a convolution with respect to its images, broken.

Pair = tuple[int, int]


def sums(grad_out: torch.Tensor, weight: torch.Tensor, *along: Pair) -> torch.Tensor:
    return reference(grad_out.double(), weight.double(), *along)


def ended(y: torch.Tensor, grad_out: torch.Tensor) -> torch.Tensor:
    """Sums in the dtype and the order of grad_out."""
    return y.to(grad_out.dtype).contiguous(memory_format=format_of(grad_out))


def _named(fn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """With the arguments by the names of the spec."""

    def conv2d_backward_input(
        grad_out: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair
    ) -> torch.Tensor:
        return fn(grad_out, weight, stride, padding, dilation, output_padding)

    conv2d_backward_input.__name__ = fn.__name__
    return conv2d_backward_input


@mutant("walks the kernel from its end", family="basics", caught_by="accuracy")
@_named
def turned_kernel(grad_out: torch.Tensor, weight: torch.Tensor, *along: Pair) -> torch.Tensor:
    return ended(sums(grad_out, weight.flip(2, 3), *along), grad_out)


@mutant("leaves out the last place of a row", family="basics", caught_by="accuracy")
@_named
def last_place_dropped(grad_out: torch.Tensor, weight: torch.Tensor, *along: Pair) -> torch.Tensor:
    g = grad_out.clone()
    g[..., -1] = 0
    return ended(sums(g, weight, *along), grad_out)


@mutant("writes zeros where the output padding is", family="basics", caught_by="accuracy")
@_named
def rest_forgotten(
    grad_out: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair
) -> torch.Tensor:
    """The rows and columns of the output padding are zeros, though padding lets places meet them."""
    h, w = output_padding
    y = sums(grad_out, weight, stride, padding, dilation, output_padding)
    return ended(F.pad(y[:, :, : y.shape[2] - h, : y.shape[3] - w], (0, w, 0, h)), grad_out)


@mutant("leaves what stands in rows that no place meets", family="basics", caught_by="accuracy")
@_named
def rows_between(
    grad_out: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair
) -> torch.Tensor:
    """Rows that no place meets are those before them."""
    y = sums(grad_out, weight, stride, padding, dilation, output_padding)
    empty = (y == 0).all(3).all(1).any(0)
    for row in empty.nonzero().flatten().tolist() if y.numel() else ():
        y[:, :, row] = y[:, :, row - 1]
    return ended(y, grad_out)


@mutant("takes the dilation of the rows for both axes", family="basics", caught_by="accuracy")
@_named
def dilation_of_rows(
    grad_out: torch.Tensor, weight: torch.Tensor, stride: Pair, padding: Pair, dilation: Pair, output_padding: Pair
) -> torch.Tensor:
    whole = sums(grad_out, weight, stride, padding, dilation, output_padding)
    found = sums(grad_out, weight, stride, (padding[0], 0), (dilation[0], dilation[0]), output_padding)
    width = whole.shape[3]
    found = F.pad(found, (0, max(0, width + padding[1] - found.shape[3])))[..., padding[1] :][..., :width]
    return ended(found, grad_out)
