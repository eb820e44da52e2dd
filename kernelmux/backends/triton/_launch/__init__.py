"""From a kernel of Triton to a launch: what is worked out once for calls alike, and how it follows the card.

Operators of other packages import `launch` by the name of this folder.
"""

from kernelmux.backends.triton._launch.launch import (
    Ints,
    Launch,
    Map,
    Start,
    cdiv,
    like,
    overlaps,
    plan,
    processors,
    shared_bytes,
)

__all__ = ["Ints", "Launch", "Map", "Start", "cdiv", "like", "overlaps", "plan", "processors", "shared_bytes"]
