"""Grids that end at 65,535 in y and z, and offsets that end at 2^31."""

from kernelmux.conformance.mutants._family import family

BACKEND = family(__name__)
