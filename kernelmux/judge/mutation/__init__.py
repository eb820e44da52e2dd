"""Broken kernels, made by a program out of our own: `kernelmux judge --mutate N --seed S`.

A change of the text (`python_changes`, `cuda_changes`, `added_paths`) is drawn by `population`, run from a copy of its
backend (`copied_backend`), shown wrong by an input that a search of its own finds (`witness`) or thrown away, and then the
suite is asked (`trial`).
"""
