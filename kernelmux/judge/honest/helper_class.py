"""Keeps the steps of a call in an object, which is made anew for each call."""

import torch

OP = "rms_norm"
FUNCTION = "rms_norm"
NEEDS = "cpu"
ALLOW = "torch"


class RowScaler:
    def __init__(self, rows, eps):
        self.rows, self.eps = rows.double(), eps

    @property
    def inverse(self):
        return torch.rsqrt(self.rows.square().mean(-1, keepdim=True) + self.eps)

    def __matmul__(self, weight):
        return self.rows * self.inverse * weight.double()


def rms_norm(x, weight, eps):
    return (RowScaler(x, eps) @ weight).to(x.dtype).contiguous()
