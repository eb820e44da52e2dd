"""Memory is read from its beginning, as if every input were contiguous, and torch's strides are never looked at.

Right for the fresh tensors that most suites draw. Found by strided, transposed and expanded inputs.
"""

import torch

OP = "square"
FUNCTION = "square"
FOUND = ("budget used", "must be equal", "wrong")
NEEDS = "cpu"
ALLOW = "torch"


def square(x):
    here = torch.as_strided(x, (min(x.numel(), x.untyped_storage().nbytes() // x.element_size()),), (1,), 0)
    flat = torch.zeros(x.numel(), dtype=x.dtype, device=x.device)
    flat[: here.numel()] = (here.float() * here.float()).to(x.dtype)
    return flat.view(x.shape)
