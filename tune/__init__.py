"""Searches the configurations that kernels declare (`registry.space`) for those that are faster than the rule's."""
