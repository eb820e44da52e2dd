"""Unit tests of the registry."""
