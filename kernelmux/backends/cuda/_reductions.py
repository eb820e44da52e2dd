"""`_families/reductions.py`, under the name by which operators of other packages import it."""

from kernelmux.backends.cuda._families.reductions import Reduction, extremum_variant

__all__ = [
    "Reduction",
    "extremum_variant",
]
