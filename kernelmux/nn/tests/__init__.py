"""Unit tests of the modules."""
