"""Runs kernels: launches, generated code, groups of lanes, warps, barriers, clusters."""
