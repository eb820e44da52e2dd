"""Where the maximum is, over one axis or over everything, on CUDA."""

import torch

from kernelmux.backends.cuda._families.reductions import Reduction
from kernelmux.backends.cuda._launch.runtime import Source
from kernelmux.registry.backend import Implementation

_ARGMAX = Reduction(Source(__file__), "argmax", dtype=torch.int64, indexed=True)

VARIANTS = {
    "split": Implementation(
        _ARGMAX,
        "values with their places; long rows and columns in chunks, put together by a second launch",
        layout={"x": "contiguous"},
    )
}
