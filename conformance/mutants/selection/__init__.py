"""Kernels that look at who was asked to run a call, and take another path."""

from kernelmux.conformance.mutants._family import family

BACKEND = family(__name__)
