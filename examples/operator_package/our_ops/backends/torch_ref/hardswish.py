"""Hard swish by torch.nn.functional.hardswish."""

import torch

from kernelmux.registry.backend import Implementation


def hardswish(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.hardswish(x).contiguous()  # torch keeps the strides of its input


VARIANTS = {"plain": Implementation(fn=hardswish, idea="torch.nn.functional.hardswish")}
