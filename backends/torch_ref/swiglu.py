"""SwiGLU by torch.nn.functional.silu, in fp32: torch would round silu(a) to the dtype before the product."""

import torch

from kernelmux.registry.backend import Implementation


def swiglu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (torch.nn.functional.silu(a.float()) * b.float()).to(a.dtype).contiguous()


VARIANTS = {"eager": Implementation(fn=swiglu, idea="torch.nn.functional.silu and a product, in fp32")}
