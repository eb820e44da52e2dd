"""Attacks that compute something cheaper which is nearly the same."""
