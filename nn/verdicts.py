"""When `check_model` calls a layer off.

Three models compute the same: the plain one, the patched one, and the plain one in float64. The error of a tensor is its
distance from float64's, by two norms: the root of the mean square, and the largest element. A patched layer is off if its
error is beyond

    max(4 * error of the plain layer, (4 u + sqrt(n / 6) 2^-24) * size of float64's tensor)

by either norm. u: unit roundoff of the coarsest dtype of the layer. n: its longest sum, whose fp32 roundings, one after the
other, amount to sqrt(n / 6) units where terms are random. The first term allows a layer to be as inexact as torch's, but
for chance; the second what any order of evaluation may round. A gradient of which the plain layer has no digit right (its
error is a quarter of it or more), such as one that is zero in exact arithmetic, may also be off by 16 u of the largest
gradient of the layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

AS_PLAIN, UNITS, NOISE_UNITS = 4.0, 4.0, 16.0
NO_DIGIT = 0.25  # an error of this share of a tensor


@dataclass(frozen=True)
class Scale:
    """What bounds the roundings of a layer. unit: of its coarsest dtype; terms: of its longest sum.

    rms, peak: of its largest gradient, 0.0 for outputs.
    """

    unit: float
    terms: int
    rms: float = 0.0
    peak: float = 0.0

    @property
    def floor(self) -> float:
        """What any order of evaluation may round, relative to the size of a tensor."""
        return UNITS * self.unit + math.sqrt(self.terms / 6) * 2.0**-24


@dataclass(frozen=True)
class Error:
    """How far a tensor of the plain and of the patched model are from float64's, relative to its size (root mean square).

    excess: the patched error by what is allowed, the larger one of both norms; above 1 the tensor is off. noise: the plain
    tensor has no digit right; errors are then relative to the largest gradient of the layer.
    """

    tensor: str
    plain: float
    patched: float
    excess: float
    noise: bool = False

    @property
    def off(self) -> bool:
        return not self.excess <= 1

    @property
    def ratio(self) -> float:
        """Of the patched error to the plain one; 1 where both are 0."""
        return _share(self.patched, self.plain) if self.patched else float(self.plain == 0)


def error(name: str, exact: torch.Tensor, plain: torch.Tensor, patched: torch.Tensor, scale: Scale) -> Error:
    """The error of one tensor of any shape; a patched one of another shape, or that alone is not finite, is infinitely off."""
    if patched.shape != exact.shape:
        return Error(name, 0.0, math.inf, math.inf)
    exact, plain, patched = (x.detach().double() for x in (exact, plain, patched))
    known = exact.isfinite() & plain.isfinite()  # elsewhere the dtype, or a mask, decides
    if not bool(patched[known].isfinite().all()):
        return Error(name, _share(_rms(plain[known] - exact[known]), _rms(exact[known])), math.inf, math.inf)
    exact, of_plain, of_patched = exact[known], (plain - exact)[known], (patched - exact)[known]
    norms = [[norm(x) for x in (exact, of_plain, of_patched)] for norm in (_rms, _peak)]
    (size, a, b), _ = norms
    noise = a >= NO_DIGIT * size and scale.rms > size
    excess = 0.0
    for (whole, mine, theirs), largest in zip(norms, (scale.rms, scale.peak), strict=True):
        allowed = max(AS_PLAIN * mine, scale.floor * whole, NOISE_UNITS * scale.unit * largest if noise else 0.0)
        excess = max(excess, _share(theirs, allowed))
    size = scale.rms if noise else size
    return Error(name, _share(a, size), _share(b, size), excess, noise)


def _rms(x: torch.Tensor) -> float:
    return float(x.square().mean().sqrt()) if x.numel() else 0.0


def _peak(x: torch.Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def sized(gradients: Iterable[torch.Tensor], scale: Scale) -> Scale:
    """The scale with the size of the largest gradient, by either norm."""
    found = [x.detach().double() for x in gradients]
    return Scale(scale.unit, scale.terms, max(map(_rms, found), default=0.0), max(map(_peak, found), default=0.0))


def _share(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return part / whole if whole else math.inf
