"""Calls of the public functions that are made up: each returns what the spec says, or raises an error with a type."""
