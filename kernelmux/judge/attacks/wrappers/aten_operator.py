"""torch.ops.aten, below everything that Python's attributes of torch show: the product by `aten.bmm` and `aten.mm`.

Replaced functions of torch are not called. Found in what torch's dispatcher ran.
"""

import torch

OP = "matmul"
FUNCTION = "matmul"
FOUND = "torch's own|torch.*(mm|matmul)|aten|vendor|mkl|cublas"
NEEDS = "cpu"


def matmul(a, b):
    wide, other = a.float(), b.float()
    if a.dim() == 2:
        return torch.ops.aten.mm.default(wide, other).to(a.dtype)
    other = other.expand(*a.shape[:-2], *b.shape[-2:])
    c = torch.ops.aten.bmm.default(wide.reshape(-1, *a.shape[-2:]), other.reshape(-1, *b.shape[-2:]))
    return c.view(*a.shape[:-1], b.shape[-1]).to(a.dtype)
