"""Maximum over one axis or over everything on CUDA."""

from kernelmux.backends.cuda._families.reductions import extremum_variant
from kernelmux.backends.cuda._launch.runtime import Source

VARIANTS = extremum_variant(Source(__file__), "reduce_max")
