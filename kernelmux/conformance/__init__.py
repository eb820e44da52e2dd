"""One suite for every backend: it knows the specs of the registry and never an implementation.

    python -m kernelmux.conformance --op softmax --backend triton --check layout

`checks/` holds one check per file, found by file name; `plan` crosses them with the registered variants; `probe` is
what a check works with; `plugin` runs the plan under pytest; `matrix`, `report` and `ledger` say what came out.
"""
