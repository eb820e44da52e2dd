"""Row-wise kernels in Triton whose rows end at the wrong place, or that leave out a term."""

from kernelmux.conformance.mutants._family import family

BACKEND = family(__name__)
