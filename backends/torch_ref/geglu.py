"""GEGLU by torch.nn.functional.gelu, in fp32: torch would round gelu(a) to the dtype before the product."""

import torch

from kernelmux.registry.backend import Implementation


def geglu(a: torch.Tensor, b: torch.Tensor, approximate: str) -> torch.Tensor:
    return (torch.nn.functional.gelu(a.float(), approximate=approximate) * b.float()).to(a.dtype).contiguous()


VARIANTS = {"eager": Implementation(fn=geglu, idea="torch.nn.functional.gelu and a product, in fp32")}
