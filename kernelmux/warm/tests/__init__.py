"""Tests of compiling ahead; none needs a GPU."""
