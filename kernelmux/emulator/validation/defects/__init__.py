"""A catalogue of planted defects: kernels that are right, and wrong in one place when a switch is on."""
