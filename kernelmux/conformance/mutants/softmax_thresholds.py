"""softmax, broken for rows of lengths that no case has."""

import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound

mutant = Mutants("softmax")

LONG, LONGEST = 12000, 60000  # columns: longer rows go in parts, the longest another way
RESIDENT, ENOUGH = 3000, 4000  # columns of rows for which there is a kernel of its own


@mutant(
    "rows beyond 12,000 go in parts of 4,096, and what is left over is no part of the sum",
    family="thresholds",
    caught_by="thresholds",
)
def parts_without_the_rest(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    n = x.shape[axis]
    if not LONG < n < LONGEST:
        return sound("softmax", x, axis, scale)  # type: ignore[no-any-return]
    z = (x.double() * scale).movedim(axis, -1)
    e = torch.exp(z - z.amax(-1, keepdim=True))
    y = e / e[..., : n // 4096 * 4096].sum(-1, keepdim=True)
    return torch.empty_like(x, memory_format=torch.contiguous_format).copy_(y.movedim(-1, axis))


@mutant(
    "the kernel for rows between 3,000 and 4,000 takes one column too many", family="thresholds", caught_by="thresholds"
)
def one_too_many(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    from kernelmux.conformance.mutants import _kernels

    if not RESIDENT < x.shape[axis] < ENOUGH:
        return sound("softmax", x, axis, scale)  # type: ignore[no-any-return]
    return _triton.rows(_kernels.softmax_beyond_its_row, x, axis, scale)
