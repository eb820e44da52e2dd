"""Searches the configurations that kernels declare (`search_space`) for those that are faster than the rule's."""
