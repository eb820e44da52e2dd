"""log_softmax in Triton: a sum over the padding as well, and a logarithm of weights that have become 0."""

import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.registry.backend import Implementation


def padded(x: torch.Tensor, axis: int) -> torch.Tensor:
    from kernelmux.conformance.mutants.edges import _kernels

    return _triton.rows(_kernels.log_softmax, x, axis, PADDED=True)


def of_weights(x: torch.Tensor, axis: int) -> torch.Tensor:
    from kernelmux.conformance.mutants.edges import _kernels

    return _triton.rows(_kernels.log_softmax, x, axis, PADDED=False)


VARIANTS = {
    "padded": Implementation(
        fn=padded, idea="the padding of the last block takes part in the sum", requires=(_triton.IN_A_BLOCK,)
    ),
    "of_weights": Implementation(
        fn=of_weights, idea="the logarithm of the weights, which underflow", requires=(_triton.IN_A_BLOCK,)
    ),
}

CAUGHT_BY = dict.fromkeys(VARIANTS, "accuracy")
