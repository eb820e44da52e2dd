"""Many workloads of an operator: over the length of an axis, `--sweep softmax:N=256..65536`, or random, `--random 40`.

`grammar` reads the words, `plan` makes workloads and rows of them, `curve` holds what came of a sweep and its file (a CSV
in the folder of a run, a record in kernelmux/records/<gpu>/sweeps/), `perf.cli.sweep` runs and shows it.
`random_shapes` draws workloads from the texts of `random_texts`; `perf.report.shares` sums up what came of them.
"""
