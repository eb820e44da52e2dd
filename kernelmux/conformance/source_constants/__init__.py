"""The integers that stand in the source of a kernel and of what launches it, each with its place."""
