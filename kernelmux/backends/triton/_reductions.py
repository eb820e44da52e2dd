"""`_families/reductions.py`, under the name by which operators of other packages import it."""

from kernelmux.backends.triton._families.reductions import (
    ReductionOperator,
    ReductionStep,
    extremum_variant,
    reduce,
    run,
)

__all__ = [
    "ReductionOperator",
    "ReductionStep",
    "extremum_variant",
    "reduce",
    "run",
]
