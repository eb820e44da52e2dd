"""The checks, one per file; `kernelmux.conformance.check` finds them by file name."""
