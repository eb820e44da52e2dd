"""When `check_model` calls a layer off.

Three models compute the same: the plain one, the patched one, and the plain one in float64. The error of a tensor is its
distance from float64's, by three norms: the root of the mean square, the largest element, and the worst row, relative to
that row (of those that are not next to nothing). A patched layer is off if by any of them its error is beyond

    max(4 * error of the plain layer, (4 u + sqrt(n / 6) 2^-24) * size of float64's tensor)

u: unit roundoff of the coarsest dtype of the layer. n: its longest sum, whose fp32 roundings, one after the other, amount
to sqrt(n / 6) units where terms are random; three times as much for the largest element, as a sum that went through large
numbers is further off than others are. The first term allows a layer to be as inexact as torch's, but for chance; the
second what any order of evaluation may round. A gradient of which the plain layer has no digit right (its error is a
quarter of it or more), such as one that is zero in exact arithmetic, may be off by 16 u of the layer's largest gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernelmux.registry.dtypes import UNIT

AS_PLAIN, UNITS, NOISE_UNITS = 4.0, 4.0, 16.0
PEAK = 3.0  # of the roundings of sums in order, n = 1024 and 4096: 2.0 to 2.4 times their root mean square
LEAST_ROW = 0.1  # of the size of a tensor; smaller rows may be what is left of larger numbers
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

    def floor(self, tail: float = 1.0) -> float:
        """What any order of evaluation may round, relative to the size of a tensor."""
        return UNITS * self.unit + tail * math.sqrt(self.terms / 6) * 2.0**-24


@dataclass(frozen=True)
class Error:
    """How far a tensor of the plain and of the patched model are from float64's, relative to its size (root mean square).

    excess: the patched error by what is allowed, the largest of the norms; above 1 the tensor is off. noise: the plain
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


def error(name: str, exact: torch.Tensor, plain: torch.Tensor, patched: torch.Tensor, scale: Scale) -> Error:
    """The error of one tensor of any shape; infinite for a patched one of another shape, or that alone is not finite."""
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
    spare = [NOISE_UNITS * scale.unit * largest if noise else 0.0 for largest in (scale.rms, scale.peak)]
    if bool(known.all()) and known.dim() > 1 and not noise:
        norms.append([1.0, *_rows(exact, of_plain, of_patched, size, known.shape[-1])])
        spare.append(0.0)
    excess, floors = 0.0, (scale.floor(), scale.floor(PEAK), scale.floor())
    for (whole, mine, theirs), floor, more in zip(norms, floors, spare, strict=False):
        excess = max(excess, _share(theirs, max(AS_PLAIN * mine, floor * whole, more)))
    size = scale.rms if noise else size
    return Error(name, _share(a, size), _share(b, size), excess, noise)


def _rms(x: torch.Tensor) -> float:
    return float(x.square().mean().sqrt()) if x.numel() else 0.0


def _rows(
    exact: torch.Tensor, of_plain: torch.Tensor, of_patched: torch.Tensor, size: float, length: int
) -> list[float]:
    """The worst of the rows of both errors, relative to the row, of rows that are not next to nothing; of flat tensors."""
    whole, a, b = (x.view(-1, max(length, 1)).square().mean(-1).sqrt() for x in (exact, of_plain, of_patched))
    counts = whole > LEAST_ROW * size
    return [_peak(x[counts] / whole[counts]) for x in (a, b)]


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


def scale_of(tensors: Iterable[Any], module: torch.nn.Module) -> Scale:
    """The coarsest dtype among tensors and parameters, and the longest sum that they may take part in."""
    floats = [x for x in tensors if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dim()]
    ids = [x for x in tensors if isinstance(x, torch.Tensor) and not x.is_floating_point()]
    weights = list(module.parameters())
    units = [UNIT.get(x.dtype, 0.0) for x in (*floats, *weights)]
    lengths = [n for x in (*floats, *weights) for n in x.shape] + [x.numel() // max(x.shape[-1], 1) for x in floats]
    return Scale(max(units, default=UNIT[torch.float32]), max([*lengths, *(x.numel() for x in ids)], default=1))


def errors_of(lists: list[list[torch.Tensor]], name: str, scale: Scale) -> Iterator[Error]:
    """Of the tensors of float64, plain and patched; one that the patched model lacks is off."""
    exact, plain, patched = lists
    if len(patched) != len(exact):
        yield Error(f"{name}: expected {len(exact)}, got {len(patched)}", 0.0, math.inf, math.inf)
        return
    for number, found in enumerate(zip(exact, plain, patched, strict=True)):
        yield error(f"{name} {number}" if len(exact) > 1 else name, *found, scale)


def gradient_errors(found: list[dict[str, torch.Tensor]], scale: Scale) -> Iterator[tuple[str, Error]]:
    """Of gradients by name; one that a model does not have is zero there."""
    exact, plain, patched = found
    whole = sized(exact.values(), scale)
    for name in {**exact, **patched}:
        zero = torch.zeros_like(exact.get(name, patched.get(name)))  # type: ignore[arg-type]
        a, b, c = (given.get(name, zero) for given in (exact, plain, patched))
        yield name, error(f"gradient of {name}", a, b, c, whole)


def worst(errors: Iterable[Error | None]) -> Error | None:
    """The error with the least to spare, if there is one."""
    return max(filter(None, errors), key=lambda found: found.excess, default=None)
