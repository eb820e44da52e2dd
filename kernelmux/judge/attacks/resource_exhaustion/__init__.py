"""Attacks that use up processes, memory, disk or descriptors. Each is bounded; without a sandbox it ends by itself."""
