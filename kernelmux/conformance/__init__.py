"""One suite for every backend: it knows the specs of the registry and never an implementation.

    python -m kernelmux.conformance --op softmax --backend triton --check layout

`checks/` holds one check per file, found by file name. A check asks its `judging.probe` for trials (`inputs.trials`), with
`variations` of them, and the probe judges each answer. `session` runs them under pytest; `report` and `verified` keep
what came out.
"""
