"""What a call must move and compute at least: the roofline and every percentage come from here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """The least work of a call.

    bytes: each input read once plus each output written once.
    flops: floating-point operations; a fused multiply-add counts two.
    unit: which ceiling the flops meet: "fma" (plain fp32 units) or "tensor" (matrix units of the dtype).
    link: which path the bytes take: "device" (GPU memory) or "host" (over the bus to the host).
    """

    bytes: int
    flops: int
    unit: str = "fma"
    link: str = "device"

    @property
    def intensity(self) -> float:
        """flops per byte; 0 for an empty call."""
        return self.flops / self.bytes if self.bytes else 0.0
