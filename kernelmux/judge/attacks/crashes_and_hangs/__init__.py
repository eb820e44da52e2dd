"""Attacks that end, stop, skip or never answer, in the hope that no verdict is a good verdict."""
