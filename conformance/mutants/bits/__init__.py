"""Bits that the spec defines: the sign of zero, subnormal numbers, overflow, the payload of a NaN."""

from kernelmux.conformance.mutants._family import family

BACKEND = family(__name__)
