"""Attacks that return before anything is computed, and leave it to whoever reads."""
