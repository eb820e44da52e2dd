"""Maximum over one axis or over everything on CUDA."""

from kernelmux.backends.cuda._reductions import Reduction
from kernelmux.backends.cuda._runtime import Source
from kernelmux.registry.backend import Implementation

_MAX = Reduction(Source(__file__), "reduce_max")

VARIANTS = {
    "split": Implementation(
        _MAX, "long rows and columns in chunks, put together by a second launch", layout={"x": "contiguous"}
    )
}
