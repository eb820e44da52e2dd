"""Curves: an operator over the length of an axis, `--sweep softmax:N=256..65536`.

`grammar` reads the words, `plan` makes workloads and rows of them, `curve` holds what came of a sweep and its file (a CSV
in the folder of a run, a record in kernelmux/records/<gpu>/sweeps/), `command` runs and shows. `perf.report.curves` draws.
"""
