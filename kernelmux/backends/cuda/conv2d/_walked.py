"""What convolutions through TMA's im2col mode ask for."""

from dataclasses import dataclass

from kernelmux.backends.cuda.conv2d._pixel_copies import VECTOR
from kernelmux.backends.cuda.conv2d._pixel_maps import CORNERS, corners
from kernelmux.backends.cuda.conv2d._plans import halves_on_hopper, indices
from kernelmux.backends.cuda.conv2d._problem import ConvolutionAxis
from kernelmux.registry.conditions import Condition
from kernelmux.registry.spec import Call
from kernelmux.registry.spec.sliding_windows import InVectors

COPIED = 33  # channels from which on images are copied; below, a fold of them has fewer terms
MOST_STEP, _MOST_OFFSET = 8, 255
_MOST_STRIDE = 64  # of conv2d_backward_input, whose works are counted for all phases together


@dataclass(frozen=True)
class Walked:
    """im2col copies reach every position and tap. transposed: of conv2d_backward_input, where they are of pixels that are
    equal modulo the stride. columns: whether they walk over those too."""

    transposed: bool = False
    columns: bool = True

    @property
    def text(self) -> str:
        border = "and the windows within 128 of the image's border"
        if self.transposed:
            return f"stride <= {_MOST_STRIDE}, a pixel's places at most {_MOST_OFFSET} apart, {border}"
        stride = f"stride <= {MOST_STEP}"
        stride = stride if self.columns else f"along rows {stride}"
        return f"{stride}, dilation * (kernel - 1) <= {_MOST_OFFSET}, {border}"

    def check(self, call: Call) -> str | None:
        """None, or where they do not."""
        for n, places, taps, name in (("H", "P", "R", "rows"), ("W", "Q", "S", "columns"))[: 1 + self.columns]:
            side = name == "columns"
            stride, padding, dilation = (call.arguments[key][side] for key in ("stride", "padding", "dilation"))
            size, positions, count = (call.axes[key] for key in (n, places, taps))
            axis = ConvolutionAxis(size, positions, count, stride, padding, dilation)
            if self.transposed:
                axis = axis._replace(positions=size).over(positions)
            far = axis.dilation * (axis.taps - 1)
            if stride > (_MOST_STRIDE if self.transposed else MOST_STEP) or far > _MOST_OFFSET:
                return f"{name}: stride {stride}, places {far} apart, needs {self.text}"
            if any(corner not in CORNERS for corner in corners(axis)):
                first, last = corners(axis)
                return f"{name}: windows from {first} on, to {last} beyond the end, needs -128 to 127"
        return None


def asks(lead: str, *together: str, channels: str, transposed: bool = False) -> tuple[Condition, ...]:
    """What the rung needs. lead: an operand. channels: axes that are inner ones of operands."""
    lines = (InVectors(axis, VECTOR, COPIED) for axis in channels)
    return (*halves_on_hopper(lead), *lines, Walked(transposed), *indices(*together))
