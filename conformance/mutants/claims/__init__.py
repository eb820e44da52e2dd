"""What a variant declares of itself, and what it returns."""

from kernelmux.conformance.mutants._family import family

BACKEND = family(__name__)
