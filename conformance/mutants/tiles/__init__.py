"""CUDA kernels that share tiles between the threads of a block, broken: borders, strides, barriers, last tiles."""

from kernelmux.conformance.mutants._family import family

BACKEND = family(__name__)
