"""The shipped kernels on a GPU and on the emulator, bit by bit: `python -m kernelmux.conformance.bits`."""
