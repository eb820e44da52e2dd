"""Kernels that are right on the GPU they were written on, and that other cards cannot have."""

from kernelmux.conformance.mutants._family import family

BACKEND = family(__name__)
