"""The ledger of what passed on a GPU, and its keys: what a variant launches, and what its operator means."""
