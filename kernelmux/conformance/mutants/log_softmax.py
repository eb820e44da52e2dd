"""log_softmax, broken."""

from collections.abc import Callable

import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._mutant import Mutants

mutant = Mutants("log_softmax")


# edges: log_softmax in Triton: a sum over the padding as well, and a logarithm of weights that have become 0.


@mutant(
    "the padding of the last block takes part in the sum",
    family="edges",
    caught_by="accuracy",
    requires=(_triton.IN_A_BLOCK,),
)
def padded(x: torch.Tensor, axis: int) -> torch.Tensor:
    from kernelmux.conformance.mutants import _kernels

    return _triton.rows(_kernels.log_softmax, x, axis, PADDED=True)


@mutant(
    "the logarithm of the weights, which underflow",
    family="edges",
    caught_by="accuracy",
    requires=(_triton.IN_A_BLOCK,),
)
def of_weights(x: torch.Tensor, axis: int) -> torch.Tensor:
    from kernelmux.conformance.mutants import _kernels

    return _triton.rows(_kernels.log_softmax, x, axis, PADDED=False)


# order: log_softmax of rows in two halves, put together in wrong ways and in the right one.

Half = tuple[torch.Tensor, torch.Tensor]  # the maximum, and the sum of exponentials relative to it


def _half(x: torch.Tensor) -> Half:
    """Of no columns, as of masked ones, the maximum is -inf and the sum 0."""
    if not x.shape[-1]:
        return torch.full((*x.shape[:-1], 1), -torch.inf, device=x.device), torch.zeros(
            (*x.shape[:-1], 1), device=x.device
        )
    m = x.amax(-1, keepdim=True)
    return m, torch.exp(x - torch.where(m == -torch.inf, 0.0, m)).sum(-1, keepdim=True)


def _joined(join: Callable[[Half, Half], Half]) -> Callable[[torch.Tensor, int], torch.Tensor]:
    def log_softmax(x: torch.Tensor, axis: int) -> torch.Tensor:
        z = x.float().movedim(axis, -1)
        middle = -(-z.shape[-1] // 2)
        m, total = join(_half(z[..., :middle]), _half(z[..., middle:]))
        y = z - m - total.log()
        return torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(y.movedim(-1, axis))

    return log_softmax


def _moved(part: Half, m: torch.Tensor) -> torch.Tensor:
    return torch.where(part[1] == 0, 0.0, part[1] * torch.exp(part[0] - m))


def _right(a: Half, b: Half) -> Half:
    m = torch.where(a[0].isnan(), a[0], torch.maximum(a[0], b[0]))
    return m, _moved(a, m) + _moved(b, m)


def _unmoved(a: Half, b: Half) -> Half:
    return torch.maximum(a[0], b[0]), a[1] + b[1]


def _masked(a: Half, b: Half) -> Half:
    m = torch.maximum(a[0], b[0])
    return m, a[1] * torch.exp(a[0] - m) + b[1] * torch.exp(torch.where(b[0] == -torch.inf, torch.nan, b[0]) - m)


mutant("both sums are moved to the larger maximum", family="order", name="right")(_joined(_right))
mutant("sums relative to two maxima are added as they are", family="order", caught_by="accuracy", name="unmoved")(
    _joined(_unmoved)
)
mutant(
    "a half that is masked throughout has no maximum to move from",
    family="order",
    caught_by="accuracy",
    name="masked_half",
)(_joined(_masked))
