"""Tests of the emulator: one file per module, small kernels, results against numpy."""
