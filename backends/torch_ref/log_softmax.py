"""Logarithm of softmax by torch.log_softmax."""

import torch

from kernelmux.registry.backend import Implementation


def plain(x: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.log_softmax(x, axis).contiguous()


def exact(x: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.log_softmax(x.float(), axis).to(x.dtype).contiguous()  # rounded once, along every axis


VARIANTS = {
    "plain": Implementation(fn=plain, idea="torch.log_softmax"),
    "exact": Implementation(fn=exact, idea="torch.log_softmax in fp32"),
}
