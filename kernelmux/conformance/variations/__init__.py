"""Calls beyond the cases of a spec: other values, lengths and neighbours, large tensors, threads, ways of torch."""
