"""The catalogue of instructions: every module has CASES, a tuple of `Case`."""
