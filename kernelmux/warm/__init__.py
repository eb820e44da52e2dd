"""Compiling ahead, without a GPU: `kernelmux warm train.py`."""
