"""A product by torch.einsum, whose letters are made from the ranks of its operands."""

import torch

OP = "matmul"
FUNCTION = "matmul"
NEEDS = "cpu"
ALLOW = "torch"


def matmul(a, b):
    batch = "pqrstuvw"[: a.dim() - 2]
    other = batch if b.dim() > 2 else ""
    return torch.einsum(f"{batch}mk,{other}kn->{batch}mn", a.double(), b.double()).to(a.dtype).contiguous()
