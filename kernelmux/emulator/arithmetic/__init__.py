"""Numbers as a GPU computes them: roundings, element types, sums of tensor cores, approximate functions."""
