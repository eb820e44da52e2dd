"""Counts access patterns while the emulator runs, as a profiler does on a GPU: sectors, bank conflicts, divergence."""
