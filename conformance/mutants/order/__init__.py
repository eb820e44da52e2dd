"""Sums in an order that changes: by atomics, by the arrival of blocks, by chance, where they are long."""

from kernelmux.conformance.mutants._family import family

BACKEND = family(__name__)
