"""State between calls: results, scratch, packed operands and plans that are remembered, shared or never let go."""

from kernelmux.conformance.mutants._family import family

BACKEND = family(__name__)
