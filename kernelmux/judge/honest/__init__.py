"""Odd kernels that are right: a judge that refuses one of them is wrong."""
