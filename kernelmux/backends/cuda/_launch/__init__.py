"""From a CUDA source to a launch: compiled, cached, its arguments checked; run by CuPy on a GPU, else by the emulator."""
