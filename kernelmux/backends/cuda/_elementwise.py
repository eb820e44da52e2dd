"""`_families/elementwise.py`, under the name by which operators of other packages import it."""

from kernelmux.backends.cuda._families.elementwise import Elementwise

__all__ = [
    "Elementwise",
]
