"""Unit tests of the suite, and the laws of the repository."""
