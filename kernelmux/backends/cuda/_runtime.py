"""`_launch/runtime.py`, under the name by which operators of other packages import it."""

from kernelmux.backends.cuda._launch.runtime import (
    BoundLaunch,
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
    "BoundLaunch",
    "Kernel",
    "Source",
    "Tiles",
    "bits_type",
    "card",
    "cdiv",
    "ctype",
    "multiprocessors",
]
