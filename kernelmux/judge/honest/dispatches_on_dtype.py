"""A match statement with a way of its own for each dtype."""

import torch

OP = "square"
FUNCTION = "square"
NEEDS = "cpu"
ALLOW = "torch"


def square(x):
    match x.dtype:
        case torch.float32:
            y = x * x
        case torch.float16 | torch.bfloat16 as half:
            y = x.float().pow(2).to(half)
        case other:
            raise TypeError(f"square: x: expected a floating-point tensor, got {other}")
    return y.contiguous()
