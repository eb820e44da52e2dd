"""Sets the number of torch's threads for its own work, and sets it back whatever happens."""

from contextlib import contextmanager

import torch

OP = "matmul"
FUNCTION = "matmul"
NEEDS = "cpu"
ALLOW = "torch"


@contextmanager
def _threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def matmul(a, b):
    with _threads(1):
        return torch.matmul(a.double(), b.double()).to(a.dtype).contiguous()
