"""The judge of kernels."""
