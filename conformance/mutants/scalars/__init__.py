"""Scalars at another value than their default: zero, negative, small, large."""

from kernelmux.conformance.mutants._family import family

BACKEND = family(__name__)
