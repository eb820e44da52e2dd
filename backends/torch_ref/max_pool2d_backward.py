"""Gradient of max_pool2d by torch's own backward, in fp32: in 16 bits it rounds after every sum."""

import torch

from kernelmux.registry.backend import Implementation
from kernelmux.registry.memory_order import format_of
from kernelmux.registry.windows import Pair


def max_pool2d_backward(
    grad_out: torch.Tensor, index: torch.Tensor, size: Pair, kernel: Pair, stride: Pair, padding: Pair
) -> torch.Tensor:
    """The images themselves are not read: only their shape counts."""
    form, shape = format_of(index), (*grad_out.shape[:-2], *size)
    images = torch.empty(shape, dtype=torch.float32, device=grad_out.device, memory_format=form)
    at = index.long().clamp_(0, size[0] * size[1] - 1)  # on a CPU torch writes wherever an index says
    found: torch.Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
        grad_out.float(), images, kernel, stride, padding, (1, 1), False, at
    )
    return found.to(grad_out.dtype).contiguous(memory_format=form)


VARIANTS = {
    "eager": Implementation(
        fn=max_pool2d_backward, idea="aten::max_pool2d_with_indices_backward in fp32", deterministic=False
    )
}
