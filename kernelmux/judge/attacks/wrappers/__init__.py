"""Attacks that return the right numbers of somebody else's kernel."""
