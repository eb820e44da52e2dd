"""Shared-memory swizzles: which bytes of a tile lie where (PTX ISA, "Swizzling modes")."""

from typing import Any

# Bytes of a swizzled line -> bits of the 16-byte unit that are exchanged with bits of the 128-byte line number.
_MASKS = {0: 0, 32: 1, 64: 3, 128: 7}
MODES = tuple(_MASKS)


def swizzled(address: Any, mode: int) -> Any:
    """Shared-memory addresses after the swizzle of `mode` bytes (0, 32, 64, 128); an involution.

    address ^ ((address / 128 mod 2, 4 or 8) * 16): within lines of 128 bytes, 16-byte units change places.
    """
    return address ^ ((address >> 7 & _MASKS[mode]) << 4)
