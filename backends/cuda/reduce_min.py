"""Minimum over one axis or over everything on CUDA."""

from kernelmux.backends.cuda._reductions import Reduction
from kernelmux.backends.cuda._runtime import Source
from kernelmux.registry.backend import Implementation

_MIN = Reduction(Source(__file__), "reduce_min")

VARIANTS = {
    "split": Implementation(
        _MIN, "long rows and columns in chunks, put together by a second launch", layout={"x": "contiguous"}
    )
}
