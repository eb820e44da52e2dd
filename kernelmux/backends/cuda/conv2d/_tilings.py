"""Tiles of the convolutions through wgmma."""

from dataclasses import astuple, dataclass

from kernelmux.backends.cuda.matmul import _wgmma
from kernelmux.backends.cuda.matmul._choice import HOPPER_MEMORY, MatmulProblem, Tiling


@dataclass(frozen=True)
class ConvolutionTiling(_wgmma.WgmmaTiling):
    """As of a matmul, whose blocks do not share the tiles of the last round."""

    def microseconds(
        self,
        p: MatmulProblem,
        splits: int,
        multiprocessors: int,
        moved: int | None = None,
        memory: float = HOPPER_MEMORY,
    ) -> float:
        """Those of any tiling, and one more for a second pass."""
        return Tiling.microseconds(self, p, splits, multiprocessors, moved, memory) + (1.0 if splits > 1 else 0.0)


# The last two fill a round that larger tiles do not: H200, us, 2 x 64 filters of 3 x 3 and 32 positions 6.7, with 64 x 128
# 7.2; 256 of 3 x 3 on 2x256x14x42 12.8, in three splits of those 14.4; 512 of 3 x 3 on 32x512x14x14 42.0 with 192 x 128,
# 50.5 by whole rounds of 128 x 128 and what they leave.
TILINGS = (
    *(ConvolutionTiling(*astuple(t)) for t in _wgmma.TILINGS),
    ConvolutionTiling(192, 128, 2.85e6, 4),
    ConvolutionTiling(64, 64, 1.3e6, 8),
)
# For few channels of the result. H200, us: 320 of 3 x 3 on 4x640x28x28, channels-last, by two blocks to a tile of 128 x 160
# 28.6, of 256 x 64 40.6.
NARROW = (
    ConvolutionTiling(128, 160, 2.9e6, 5),
    ConvolutionTiling(128, 64, 1.6e6, 8),
    ConvolutionTiling(256, 64, 1.9e6, 5, height=2),
    ConvolutionTiling(256, 96, 2.6e6, 4, height=2),
)
# Sums over positions: the right operand comes in copies of 64 pixels, so that narrow tiles wait less for it. On an H200
# 256 x 2304 sums of 100352 terms take 184 us with these tiles, 198 with 128 x 256.
TALL = (ConvolutionTiling(256, 128, 3.3e6, 4, height=2),)
# Clusters of so many blocks for which 132 multiprocessors have room at one time, in whatever even numbers eight GPCs have
# them, but for those of eight. With 30 of four the gradient of 2x512x20x30, 512 of 3 x 3, took 23.3 us, as two rounds do.
ROOM = {2: 66, 3: 38, 4: 29, 8: 14}
