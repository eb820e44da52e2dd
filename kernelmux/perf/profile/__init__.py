"""Where the time of a program goes: `nox -s profile -- --op softmax --backend triton`, `... -- script.py`.

`capture` runs an operator or a script under torch.profiler, `timeline` reads the Chrome trace that comes of it, or any
other, `findings` says what it shows, `counters` asks ncu, `report` prints. docs/profiling.md shows how to read it.
"""
