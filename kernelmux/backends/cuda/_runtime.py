"""`_launch/runtime.py`, under the name by which operators of other packages import it."""

from kernelmux.backends.cuda._launch.runtime import (
    Bound,
    Kernel,
    Source,
    Tiles,
    bits_type,
    card,
    cdiv,
    ctype,
    multiprocessors,
)

__all__ = [
    "Bound",
    "Kernel",
    "Source",
    "Tiles",
    "bits_type",
    "card",
    "cdiv",
    "ctype",
    "multiprocessors",
]
