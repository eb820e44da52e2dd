"""max_pool2d_backward, broken."""

from collections.abc import Callable

import torch

from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound
from kernelmux.registry.util.memory_format import format_of

mutant = Mutants("max_pool2d_backward")


# basics: Gradient of max_pool2d, broken where windows overlap and at borders.

Pair = tuple[int, int]


def _sound(
    grad_out: torch.Tensor, index: torch.Tensor, size: Pair, kernel: Pair, stride: Pair, padding: Pair
) -> torch.Tensor:
    y: torch.Tensor = sound("max_pool2d_backward", grad_out, index, size, kernel, stride, padding)
    return y


def _following(fn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The result lies as the index does."""

    def called(
        grad_out: torch.Tensor, index: torch.Tensor, size: Pair, kernel: Pair, stride: Pair, padding: Pair
    ) -> torch.Tensor:
        found = fn(grad_out, index, size, kernel, stride, padding)
        return found.contiguous(memory_format=format_of(index))

    called.__name__ = fn.__name__
    return called


mutant("nothing is wrong with it", family="basics", name="sound")(_following(_sound))


@mutant("windows behind 65,535 rows of them give nothing", family="extent", caught_by="extent")
@_following
def rows_of_windows(
    grad_out: torch.Tensor, index: torch.Tensor, size: Pair, kernel: Pair, stride: Pair, padding: Pair
) -> torch.Tensor:
    kept = grad_out.clone()
    kept[..., 65535:, :] = 0
    return _sound(kept, index, size, kernel, stride, padding)


@mutant("the last window wins", family="basics", caught_by="accuracy")
@_following
def overwritten(
    grad_out: torch.Tensor, index: torch.Tensor, size: Pair, kernel: Pair, stride: Pair, padding: Pair
) -> torch.Tensor:
    """Each window writes its gradient, whatever another one wrote there."""
    made = grad_out.new_zeros(*grad_out.shape[:-2], size[0] * size[1])
    return made.scatter_(-1, index.long().flatten(-2), grad_out.flatten(-2)).view(*grad_out.shape[:-2], *size)


@mutant("sums in the dtype of the gradients", family="basics", caught_by="accuracy")
@_following
def narrow_sums(
    grad_out: torch.Tensor, index: torch.Tensor, size: Pair, kernel: Pair, stride: Pair, padding: Pair
) -> torch.Tensor:
    """Rounds to the dtype after every window, as torch does on a CPU."""
    made = grad_out.new_zeros(*grad_out.shape[:-2], size[0] * size[1])
    for row in range(grad_out.shape[-2]):
        for column in range(grad_out.shape[-1]):
            at = (..., slice(column, column + 1))
            made.scatter_add_(-1, index[..., row, :].long()[at], grad_out[..., row, :][at])
    return made.view(*grad_out.shape[:-2], *size)


@mutant("no gradient from windows in the padding", family="basics", caught_by="accuracy")
@_following
def padding_counts(
    grad_out: torch.Tensor, index: torch.Tensor, size: Pair, kernel: Pair, stride: Pair, padding: Pair
) -> torch.Tensor:
    """Windows of the first row are left out where they begin in the padding."""
    kept = grad_out.clone()
    kept[..., : -(-padding[0] // stride[0]), :] = 0
    return _sound(kept, index, size, kernel, stride, padding)


@mutant("one row of windows for each element", family="basics", caught_by="accuracy")
@_following
def missing_overlap(
    grad_out: torch.Tensor, index: torch.Tensor, size: Pair, kernel: Pair, stride: Pair, padding: Pair
) -> torch.Tensor:
    """An element looks at one row of windows, the last that may hold it."""
    rows = torch.arange(grad_out.shape[-2], device=grad_out.device)[:, None]
    last = ((index // size[1] + padding[0]) // stride[0]).clamp(max=grad_out.shape[-2] - 1)
    return _sound(torch.where(last == rows, grad_out, 0), index, size, kernel, stride, padding)


@mutant("compares positions in fp32", family="basics", caught_by="accuracy", shown_by="*-size4100x4100-kernel2")
@_following
def position_in_fp32(
    grad_out: torch.Tensor, index: torch.Tensor, size: Pair, kernel: Pair, stride: Pair, padding: Pair
) -> torch.Tensor:
    """Compares positions as floats: beyond 2^24 those are even."""
    return _sound(grad_out, index.float().int(), size, kernel, stride, padding)


@mutant("adds outside of the window as well", family="basics", caught_by="special_values")
@_following
def trusting(
    grad_out: torch.Tensor, index: torch.Tensor, size: Pair, kernel: Pair, stride: Pair, padding: Pair
) -> torch.Tensor:
    """Adds wherever an index says, also outside of its window."""
    made = grad_out.new_zeros((*grad_out.shape[:-2], size[0] * size[1]), dtype=torch.float64)
    at = index.long().clamp(0, size[0] * size[1] - 1).flatten(-2)
    made.scatter_add_(-1, at, grad_out.double().flatten(-2))
    return made.view(*grad_out.shape[:-2], *size).to(grad_out.dtype)
