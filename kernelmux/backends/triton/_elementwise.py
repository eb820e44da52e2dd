"""`_families/elementwise.py`, under the name by which operators of other packages import it."""

from kernelmux.backends.triton._families.elementwise import elementwise, elementwise_all

__all__ = [
    "elementwise",
    "elementwise_all",
]
