"""Functions that got through other suites and do not get through this one: python -m kernelmux.conformance --impl."""
