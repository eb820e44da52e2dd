"""One harness that times every backend: ceilings, device times, rooflines, ladders, reports.

    python -m kernelmux.perf --op matmul --backend cuda triton

`planning.plan` crosses operators, workloads, dtypes and variants into rows. `session.run` gives them to the worker
processes of `kernelmux.runner`, which run `row_tests` under pytest-benchmark on the virtual `timing.clock`.
`timing.measure` times a row, and `timing.verify` checks what it computed. What comes of it is a `rows.row_result`, of a
run a `record.run_file`, and `record.history` keeps those of each GPU. `report` shows them.
"""
