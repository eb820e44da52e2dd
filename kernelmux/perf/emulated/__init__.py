"""What can be said about kernels without a GPU: the emulator's trace of a call, and what each kernel needs as compiled.

`emulate` is the command `kernelmux emulate`, `trace_table` its table; `resources` reads registers, shared memory and
occupancy from the machine code; `ncu_check` compares the counts of the trace with Nsight Compute on the launches of
`ncu_calls`.
"""
