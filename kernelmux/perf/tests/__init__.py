"""Tests of the harness; none needs a GPU."""
