"""Kernels of operators that are alike, and what several families share: elementwise, reductions, activations, windows."""
