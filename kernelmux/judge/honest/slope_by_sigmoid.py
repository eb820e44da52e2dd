"""The slope of gelu by sigmoids: (1 + tanh(u)) / 2 is sigmoid(2u), which keeps its digits where tanh is almost -1."""

import math

import torch

OP = "gelu_backward"
FUNCTION = "gelu_backward"
NEEDS = "cpu"
ALLOW = "torch"
CUBE = 0.044715
FAR = 1000.0  # the slope is 0 or 1 there


def gelu_backward(grad_out, x, approximate):
    z = x.double()
    if approximate == "tanh":
        scale = 2 * math.sqrt(2 / math.pi)
        u = scale * (z + CUBE * z**3)
        slope = torch.sigmoid(u) * (1 + z * torch.sigmoid(-u) * scale * (1 + 3 * CUBE * z * z))
    else:
        density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        slope = torch.special.erfc(-z / math.sqrt(2)) / 2 + z * density
    slope = torch.where(z.abs() > FAR, (z > 0).double(), slope)
    return (grad_out.double() * slope).to(x.dtype).contiguous()
