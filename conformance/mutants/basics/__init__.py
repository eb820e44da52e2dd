"""Wrong results and wrong memory: masks, accumulators, axes, inputs and outputs."""

from kernelmux.conformance.mutants._family import family

BACKEND = family(__name__)
