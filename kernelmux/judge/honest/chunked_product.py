"""A product of matrices in chunks of K, summed in float64."""

import torch

OP = "matmul"
FUNCTION = "matmul"
NEEDS = "cpu"
ALLOW = "torch"
CHUNK = 24


def matmul(a, b):
    c = torch.zeros(*a.shape[:-1], b.shape[-1], dtype=torch.float64, device=a.device)
    for k in range(0, a.shape[-1], CHUNK):
        c += a[..., k : k + CHUNK].double() @ b[..., k : k + CHUNK, :].double()
    return c.to(a.dtype)
