"""Gradient of max_pool2d by torch's own backward, which in 16 bits rounds after every sum."""

from math import prod

import torch

from kernelmux.registry.backend import Implementation
from kernelmux.registry.numerics import Rounding
from kernelmux.registry.spec.sliding_windows import Pair
from kernelmux.registry.util.memory_format import format_of, fresh


def plain(
    grad_out: torch.Tensor, index: torch.Tensor, size: Pair, kernel: Pair, stride: Pair, padding: Pair
) -> torch.Tensor:
    form, shape = format_of(index), (*grad_out.shape[:-2], *size)
    images = torch.empty(shape, dtype=grad_out.dtype, device=grad_out.device, memory_format=form)
    if not index.is_cuda:  # torch's kernel for a GPU looks at windows by itself
        grad_out, index = _own(grad_out, index, size, kernel, stride, padding)
    backward = torch.ops.aten.max_pool2d_with_indices_backward
    found: torch.Tensor = backward(grad_out, images, kernel, stride, padding, (1, 1), False, index.long())
    return fresh(found, form)


def exact(
    grad_out: torch.Tensor, index: torch.Tensor, size: Pair, kernel: Pair, stride: Pair, padding: Pair
) -> torch.Tensor:
    """The images themselves are not read: only their shape counts."""
    form, shape = format_of(index), (*grad_out.shape[:-2], *size)
    images = torch.empty(shape, dtype=torch.float32, device=grad_out.device, memory_format=form)
    grad, at = _own(grad_out.float(), index, size, kernel, stride, padding)
    found: torch.Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
        grad, images, kernel, stride, padding, (1, 1), False, at.long()
    )
    return fresh(found.to(grad_out.dtype), form)


def _own(
    grad_out: torch.Tensor, index: torch.Tensor, size: Pair, kernel: Pair, stride: Pair, padding: Pair
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both [... OH OW], with 0 where an index lies outside of its own window: on a CPU torch adds wherever one says."""
    h, w = index.div(size[1], rounding_mode="floor"), index.remainder(size[1])
    oh, ow = (torch.arange(n, device=index.device) for n in index.shape[-2:])
    down, right = h - (oh[:, None] * stride[0] - padding[0]), w - (ow * stride[1] - padding[1])
    rows = (down >= 0) & (down < kernel[0]) & (h >= 0) & (h < size[0])
    own = rows & (right >= 0) & (right < kernel[1])
    return torch.where(own, grad_out, 0), torch.where(own, index, 0)


def _sums(grad_out: torch.Tensor, index: torch.Tensor, size: Pair, kernel: Pair, *rest: Pair) -> torch.Tensor:
    """Each sum but the last, of as many windows as share an element."""
    shared = prod(-(-k // s) for k, s in zip(kernel, rest[0], strict=True))
    return (shared - 1) * exact(grad_out.abs(), index, size, kernel, *rest)


SUMS = Rounding("every sum", _sums, lambda grad_out, *rest: torch.zeros((), dtype=grad_out.dtype))

VARIANTS = {
    "plain": Implementation(
        fn=plain, idea="aten::max_pool2d_with_indices_backward", deterministic=False, rounds=(SUMS,)
    ),
    "exact": Implementation(fn=exact, idea="aten::max_pool2d_with_indices_backward in fp32", deterministic=False),
}
