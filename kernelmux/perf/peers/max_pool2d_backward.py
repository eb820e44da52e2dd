"""Gradient of max_pool2d in other libraries, from the index that the forward call saved."""

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from kernelmux.perf.peers._libraries import compiled, through_torch
from kernelmux.registry.spec.sliding_windows import Pair
from kernelmux.registry.util.memory_format import format_of

_wide: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def backward(
    grad_out: torch.Tensor, index: torch.Tensor, size: Pair, kernel: Pair, stride: Pair, padding: Pair
) -> torch.Tensor:
    """The images themselves are not read: only their shape counts."""
    shape = (*grad_out.shape[:-2], *size)
    images = torch.empty(shape, dtype=grad_out.dtype, device=grad_out.device, memory_format=format_of(index))
    found: torch.Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
        grad_out, images, kernel, stride, padding, (1, 1), False, index.long()
    )
    return found


def with_torch(
    grad_out: torch.Tensor, index: torch.Tensor, size: Pair, kernel: Pair, stride: Pair, padding: Pair
) -> torch.Tensor:
    """With the index in 64 bits, converted once: torch's own forward call gives it so."""
    if index not in _wide:
        _wide[index] = index.long()
    return backward(grad_out, _wide[index], size, kernel, stride, padding)


VARIANTS = {
    "aten": through_torch("torch's own backward in the dtype", with_torch, deterministic=False),
    "torch_compile": compiled(backward, deterministic=False),
}
