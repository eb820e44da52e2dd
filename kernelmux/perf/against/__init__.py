"""Did a change help? Two trees timed side by side, each row with a verdict.

    python -m kernelmux.perf --against main --op softmax

`trees` makes a work tree of a revision; `tree_workers` has a process per tree, in which `worker` lets `stand` time rows of
that tree's backends with this tree's harness. `agenda` says which rows there are to compare, `session` times them in
turns, `verdict` judges, `comparison` is the whole of it, and `command` the command line.
"""
