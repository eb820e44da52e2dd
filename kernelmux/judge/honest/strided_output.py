"""The output is a view of a flat buffer, made by as_strided: contiguous all the same, and all of its memory."""

import torch

OP = "transpose"
FUNCTION = "transpose"
NEEDS = "cpu"
ALLOW = "torch"


def transpose(x):
    m, n = x.shape
    memory = torch.empty(m * n, dtype=x.dtype, device=x.device)
    torch.as_strided(memory, (m, n), (1, m)).copy_(x)
    return torch.as_strided(memory, (n, m), (m, 1))
