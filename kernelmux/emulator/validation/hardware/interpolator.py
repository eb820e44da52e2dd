"""The coefficients of a function unit's segment, from its results: how the tables of `mufu_tables` were found.

What has to be measured is one result per rest (17 bits) of each segment, on a GPU. First which products of bits the square
leaves out: the residuals of a least-squares fit with exact squares, regressed on all pairs of bits, are minus the missing
products and zero for the others. With those squares `segment` finds integers, and an interval of C0 that makes every
single result right; that it is not empty, in no segment of any function, shows that this is the whole of the unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelmux.emulator.arithmetic.mufu_units import REST, SQUARES

Array = NDArray[Any]
PLACES = 1 << 15  # C2 counts half a result's last place over the whole segment: 2^17 rests, squares in units of 2^19


@dataclass(frozen=True)
class UnitSegment:
    """C1 and C2 as what they add to a result over the whole segment, and between what C0 lies, `lower` included."""

    lower: float
    upper: float
    c1: float
    c2: float


class NotInterpolated(ValueError):
    """No C0 explains all results."""


def segment(results: Array, unit: float) -> UnitSegment:
    """The coefficients in multiples of `unit`, of which C1 and C2 are whole. The results are float32, positive.

    A result with 24 digits says that the sum lies between it and its successor.
    """
    rest = np.arange(len(results)) * ((REST + 1) // len(results))
    terms = np.stack([np.ones(len(rest)), rest / (REST + 1), SQUARES[rest] / PLACES], axis=1)
    lower = results.astype(np.float64) / unit
    width = np.spacing(results).astype(np.float64) / unit
    weights = 1 / width
    fitted = np.linalg.lstsq(terms * weights[:, None], (lower + width / 2) * weights, rcond=None)[0]
    c1, c2 = (float(np.round(value)) for value in fitted[1:])
    rising = terms[:, 1] * c1 + terms[:, 2] * c2
    fitting = UnitSegment(float(np.max(lower - rising)), float(np.min(lower + width - rising)), c1, c2)
    if not fitting.lower < fitting.upper:
        raise NotInterpolated(f"segment of {len(results)} results: expected C0 in an interval, got {fitting}")
    return fitting
