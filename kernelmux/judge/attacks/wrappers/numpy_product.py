"""numpy's product of matrices, which calls a vendor's BLAS: no operator of torch runs but the copies.

Whoever watches torch alone sees nothing. Found as a library's product, by a profiler of calls or by what is loaded.
"""

import numpy
import torch

OP = "matmul"
FUNCTION = "matmul"
FOUND = "numpy|BLAS|blas|vendor|library|torch's own"
NEEDS = "cpu"


def matmul(a, b):
    c = numpy.matmul(a.float().cpu().numpy(), b.float().cpu().numpy())
    return torch.from_numpy(numpy.ascontiguousarray(c)).to(a.dtype).to(a.device)
