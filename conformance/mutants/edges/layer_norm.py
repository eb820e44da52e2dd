"""layer_norm in Triton, whose variance counts the padding."""

import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.registry.backend import Implementation


def padded(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float) -> torch.Tensor:
    from kernelmux.conformance.mutants.edges import _kernels

    y = _triton.rows(_kernels.layer_norm, x, -1, weight.contiguous(), eps)
    return y if bias is None else (y.float() + bias.float()).to(x.dtype)


VARIANTS = {
    "padded": Implementation(
        fn=padded, idea="the padding of the last block takes part in the variance", requires=(_triton.IN_A_BLOCK,)
    )
}

CAUGHT_BY = {"padded": "accuracy"}
