"""Launchers of operators that are alike: elementwise, reductions, rows and their gradients, windows, 8-bit products."""
