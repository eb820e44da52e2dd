"""What surrounds a call: default dtype and device, modes, flags, random generators."""

from kernelmux.conformance.mutants._family import family

BACKEND = family(__name__)
