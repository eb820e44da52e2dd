"""From a CUDA source to a launch: compiled, cached, its arguments checked; on a GPU by CuPy, on a CPU by the emulator."""
