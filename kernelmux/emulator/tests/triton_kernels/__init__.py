"""Kernels of the Triton corpus, by family."""
