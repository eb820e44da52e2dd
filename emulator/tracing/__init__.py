"""What a profiler says about access patterns, counted while the emulator runs: sectors, bank conflicts, divergence."""
