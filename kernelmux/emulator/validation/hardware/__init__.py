"""The same instructions with the same operands on a GPU and on the emulator, bit by bit."""
