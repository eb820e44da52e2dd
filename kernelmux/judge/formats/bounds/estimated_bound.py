"""How far a right result may be off where no spec says so: estimated, by running the reference many times.

    bound = ROUNDING * u_out * |y|             one rounding to the output's format; two for formats of 8 bits
          + (8 + tail(N, n)) * u * max(L, |y|) rounding of every step, as in a sum of N terms (`numerics.tail`)
          + SEEN * E                           what the reference itself is off by in its own formats
          + SEEN * P                           the same where it is off by little by chance
          + J                                  how far the output jumps if inputs move by a few units of fp32
          + smallest normal number of fp32

y is the reference in float64. u is 2^-24, the unit roundoff of fp32, in which kernels compute whatever their inputs are.

L, by element, is the sum over all input numbers x of |x * dy/dx|: how far the output moves if every input moves by its own
size, each in the direction that is worst. No derivative is taken: inputs are moved in random directions with steps that
are spread as Cauchy's distribution, under which such a sum of absolute values is the median of the moves (Indyk 2006). For
a product of matrices this is twice the sum of |a * b|, the magnitude of which the derived bound takes its share. Steps that
are spread as a normal distribution give the root of the sum of squares, L2; N = (L / L2)^2 in the median over the elements
is about how many numbers an output sums up, in one long chain at worst. n is the number of outputs.

E is the largest |reference in its own formats - y| over `RUNS` inputs nearby, less the rounding to the output's format.
J is the largest move of y itself where inputs move by `MOVED` units of fp32, less what L explains. P is the lesser of two
measures that all but one in a thousand elements keep to: their E, and their E over |y| + L. It is what a reference that
rounds on the way, to 16 bits, is off by where these runs do not show it.

The constants were chosen on our own operators, where a derived bound is known (`python -m kernelmux.judge.formats
--calibrate` prints both): torch's own operators pass, and a bound is estimated to within a factor of ten of the derived one
in the median. It is no proof: a step whose error the reference does not show, and inputs do not excite, is not in it.

Where the sizes of outputs depend on which numbers are equal, as in unique, equal numbers are moved alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kernelmux.judge.formats.task import FormatError
from kernelmux.registry import numerics
from kernelmux.registry.dtypes import UNIT

SEEN, ROUNDING = 4.0, 1.25
DRAWS, NORMAL, RUNS, JUMPS = 9, 4, 6, 2
KEPT = 0.999  # of the elements, for P
STEP = 2.0**-40  # of the Cauchy steps: so small that a function is straight along all but the longest
FAR = 2.0**12  # the longest, in steps
MOVED = 4.0  # units of fp32 that inputs are moved by between runs
FP32 = UNIT[torch.float32]
TINY = torch.finfo(torch.float32).smallest_normal
SAMPLE = 2**20  # elements of which quantiles are taken

Evaluate = Callable[[Sequence[torch.Tensor], bool], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Estimate:
    """An output: its value in float64, the bound by element, None where it must be equal, and what is open.

    dtype: of the output. undecided: for one that must be equal, which elements change when inputs move by a few units:
    what is right there is not settled.
    """

    value: torch.Tensor
    bound: torch.Tensor | None
    dtype: torch.dtype
    undecided: torch.Tensor | None = None


def estimate(
    evaluate: Evaluate, leaves: Sequence[torch.Tensor], seed: int, unit: float = FP32, seen: bool = True
) -> list[Estimate]:
    """The estimated bound of every output of a function of tensors; see the module.

    evaluate: the function, given tensors like `leaves`, and whether to compute in float64. unit: the unit roundoff of
    what kernels compute in, 2^-11 where products in tf32 are right. seen: whether the function's own error on these very
    inputs counts; without it that is a fair trial of the estimate. Takes
    `DRAWS` + `NORMAL` + 2 * `RUNS` + `JUMPS` + 2 evaluations.
    """
    try:
        return _estimate(evaluate, leaves, _Moves(seed, unit, alike=False), seen)
    except OtherSizes:
        return _estimate(evaluate, leaves, _Moves(seed, unit, alike=True), seen)


class OtherSizes(FormatError):
    """Outputs have other sizes where inputs are moved."""


def _estimate(evaluate: Evaluate, leaves: Sequence[torch.Tensor], moves: _Moves, seen: bool) -> list[Estimate]:
    raised = [_raised(x) for x in leaves]
    values, own = evaluate(raised, True), evaluate(leaves, False)
    spread = [_Spread(y, o, seen) for y, o in zip(values, own, strict=True)]
    for _ in range(DRAWS):
        steps = [moves.cauchy(x) for x in raised]
        moved = evaluate([x if s is None else x + x * (s * STEP) for x, s in zip(raised, steps, strict=True)], True)
        for one, y in zip(spread, moved, strict=True):
            one.draw(y)
    for _ in range(NORMAL):
        steps = [moves.normal(x) for x in raised]
        moved = evaluate([x if s is None else x + x * (s * STEP) for x, s in zip(raised, steps, strict=True)], True)
        for one, y in zip(spread, moved, strict=True):
            one.draw_normal(y)
    for _ in range(RUNS):
        near = [moves.near(x) for x in leaves]
        exact, working = evaluate([_raised(x) for x in near], True), evaluate(near, False)
        for one, y, w in zip(spread, exact, working, strict=True):
            one.run(y, w)
    for _ in range(JUMPS):
        moved = evaluate([moves.moved(x, moves.unit) for x in raised], True)
        for one, y in zip(spread, moved, strict=True):
            one.leap(y)
    return [one.estimate(o.dtype, moves.unit) for one, o in zip(spread, own, strict=True)]


class _Spread:
    """What is gathered of one output."""

    def __init__(self, value: torch.Tensor, own: torch.Tensor, seen: bool) -> None:
        self.value = value
        self.float = own.dtype.is_floating_point
        self.moves: list[torch.Tensor] = []
        self.squares = torch.zeros_like(value, dtype=torch.float64)
        self.error = _apart(own, value) if self.float and seen else torch.zeros_like(value, dtype=torch.float64)
        self.jump = torch.zeros_like(value, dtype=torch.float64)
        self.changes = torch.zeros_like(value, dtype=torch.bool) if self.float else _differ(own, value)

    def draw(self, y: torch.Tensor) -> None:
        if self.float:
            self.moves.append(_apart(y, self.value) / STEP)

    def draw_normal(self, y: torch.Tensor) -> None:
        if self.float:
            self.squares += (_apart(y, self.value) / STEP) ** 2 / NORMAL

    def run(self, y: torch.Tensor, working: torch.Tensor) -> None:
        if self.float:
            self.error = torch.maximum(self.error, _apart(working, y))

    def leap(self, y: torch.Tensor) -> None:
        if self.float:
            self.jump = torch.maximum(self.jump, _apart(y, self.value))
        else:
            self.changes |= _differ(y, self.value)

    def estimate(self, dtype: torch.dtype, unit: float) -> Estimate:
        if not self.float:
            return Estimate(self.value, None, dtype, self.changes)
        value, out = self.value.double(), UNIT.get(dtype, FP32)
        rounding = (1 if dtype.itemsize > 1 else 2) * out * _finite(value) * ROUNDING
        excited = torch.stack(self.moves).median(0).values
        terms = _quantile((excited**2 / self.squares.clamp(min=TINY**2))[self.squares > 0], 0.5)
        chain = (8 + numerics.tail(max(1.0, terms), value.numel())) * unit * torch.maximum(excited, _finite(value))
        jump = (self.jump - 2 * MOVED * unit * excited).clamp(min=0)
        beyond = (self.error - rounding).clamp(min=0)
        bound = rounding + chain + SEEN * (beyond + self._typical(beyond, excited)) + jump + TINY
        return Estimate(value, bound, dtype)

    def _typical(self, error: torch.Tensor, excited: torch.Tensor) -> torch.Tensor:
        """P: what most errors keep to, by their size and by their share of |y| + L; by element the least."""
        measure = _finite(self.value.double()) + excited + TINY
        return (_quantile(error / measure, KEPT) * measure).clamp(max=_quantile(error, KEPT))


def _raised(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.dtype in UNIT else x


class _Moves:
    """Random moves of inputs. alike: equal numbers of a tensor move together."""

    def __init__(self, seed: int, unit: float, alike: bool) -> None:
        self.rng = torch.Generator(device="cpu").manual_seed(seed)
        self.unit, self.alike = unit, alike

    def cauchy(self, x: torch.Tensor) -> torch.Tensor | None:
        """Steps for every number of a float64 tensor, spread as Cauchy's distribution and cut at `FAR`; None for others."""
        if x.dtype != torch.float64:
            return None
        return self._given((math.pi * (self._even(x) - 0.5)).tan_().clamp_(-FAR, FAR), x)

    def normal(self, x: torch.Tensor) -> torch.Tensor | None:
        """Steps for every number of a float64 tensor, spread as a normal distribution; None for others."""
        if x.dtype != torch.float64:
            return None
        return self._given(torch.randn(x.shape, generator=self.rng, dtype=torch.float64), x)

    def moved(self, x: torch.Tensor, unit: float) -> torch.Tensor:
        """A tensor of float64 moved by up to `MOVED` units, evenly spread; others as they are."""
        if x.dtype != torch.float64:
            return x
        moved = x + x * (self._given(2 * self._even(x) - 1, x) * (MOVED * unit))
        return torch.where(x.isinf(), x, moved)  # and no NaN

    def near(self, x: torch.Tensor) -> torch.Tensor:
        """The tensor moved to numbers of its own format nearby: errors of a reference there are others of the same kind.

        Of 16 bits a number moves by one of its own units at most, of 8 bits not at all.
        """
        if x.dtype not in UNIT or x.dtype.itemsize == 1:
            return x
        return self.moved(x.double(), max(self.unit, UNIT[x.dtype] / 2)).to(x.dtype)

    def _even(self, x: torch.Tensor) -> torch.Tensor:
        return torch.rand(x.shape, generator=self.rng, dtype=torch.float64)

    def _given(self, steps: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The steps where x lies, one for all that are equal if they move alike."""
        steps = steps.to(x.device)
        return steps.flatten()[torch.unique(x, return_inverse=True)[1]] if self.alike else steps


def _apart(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """|one - other| in float64; 0 where both are the same infinity or NaN, and where one of them alone is not finite."""
    _of_size(one, other)
    return (one.double() - other.double()).abs().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _of_size(one: torch.Tensor, other: torch.Tensor) -> None:
    if one.shape != other.shape:
        raise OtherSizes(f"an output of {list(other.shape)} is one of {list(one.shape)} where inputs are moved")


def _differ(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    _of_size(one, other)
    return one != other


def _finite(x: torch.Tensor) -> torch.Tensor:
    return x.abs().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _quantile(x: torch.Tensor, share: float) -> float:
    flat = x.flatten()
    if not flat.numel():
        return 0.0
    flat = flat[:: max(1, flat.numel() // SAMPLE)]
    return float(flat.kthvalue(max(1, math.ceil(share * flat.numel()))).values)
