"""One harness that times every backend: ceilings, device times, rooflines, ladders, reports.

    python -m kernelmux.perf --op matmul --backend cuda triton

`plan` crosses operators, workloads, dtypes and variants into rows; `run` gives them to worker processes, where `suite`
runs them under pytest-benchmark, whose timer is the virtual `clock`; `measure` times one row and `verify` checks what it
computed; `aa` times everything twice; `roofline` does the arithmetic. What comes of a row is a `result`, of a run
`results`, and `records` keeps those of each GPU; `json_form` writes and reads them.

Parts have folders of their own: `report` shows results, `emulated` holds what works without a GPU, `against` compares
two trees.
"""
