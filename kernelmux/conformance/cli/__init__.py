"""The commands `kernelmux conformance` and `kernelmux ledger`."""
