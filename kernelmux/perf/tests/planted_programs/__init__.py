"""Programs with a planted fault each, which the profiler, ncu or an error of ours has to name."""
