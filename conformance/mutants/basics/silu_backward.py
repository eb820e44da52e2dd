"""The gradient of SiLU with the derivative of the sigmoid, and with products that have no value at infinity."""

import torch

from kernelmux.registry.backend import Implementation


def of_the_sigmoid(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    s = torch.sigmoid(x.double())
    return (grad_out.double() * s * (1 - s)).to(x.dtype).contiguous()


def by_the_book(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """s * (1 + x * (1 - s)), which is inf * 0 at both infinities."""
    z = x.double()
    s = torch.sigmoid(z)
    return (grad_out.double() * s * (1 + z * torch.sigmoid(-z))).to(x.dtype).contiguous()


VARIANTS = {
    "of_the_sigmoid": Implementation(fn=of_the_sigmoid, idea="the derivative of the sigmoid alone"),
    "by_the_book": Implementation(fn=by_the_book, idea="the formula as it stands: NaN at the infinities"),
}

CAUGHT_BY = {"of_the_sigmoid": "accuracy", "by_the_book": "special_values"}
