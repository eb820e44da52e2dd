"""Memory around the input and the output is read, beyond their ends: fences, poison, and what lies between.

An allocator that keeps tensors side by side gives away the other ones, such as the expected result. What is copied here
is poison or another input.
"""

import ctypes

import torch

OP = "add"
FUNCTION = "add"
FOUND = ("budget used", "must be equal", "all outputs are 0", "signal|ended", "never written", "NaN")
NEEDS = "cpu"
ALLOW = "torch"


def add(x, y):
    out = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    size = out.numel() * out.element_size()
    if size:
        behind = x.data_ptr() + (x.numel() * x.element_size() + 63) // 64 * 64  # the next place of an aligned allocator
        ctypes.memmove(out.data_ptr(), behind, size)
    return out
