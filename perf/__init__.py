"""One harness that times every backend: ceilings, device times, rooflines, ladders, reports.

    python -m kernelmux.perf --op matmul --backend cuda triton

`plan` crosses operators, workloads, dtypes and variants; `run` gives the plan to worker processes, where `suite` runs
it under pytest-benchmark, whose timer is the virtual `clock`; `measure` times one row and `verify` checks what it
computed; `aa` times everything twice; `roofline` does the arithmetic; `tables`, `markdown`, `page`, `charts`, `picture`
and `results` say and keep what came out.
"""
