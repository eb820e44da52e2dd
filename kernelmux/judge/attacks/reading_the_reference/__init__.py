"""Attacks that copy what they should compute: from the spec, from the judge's memory, from another process."""
