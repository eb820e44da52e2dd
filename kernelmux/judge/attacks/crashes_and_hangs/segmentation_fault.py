"""Reads address 0 in the second call: the process dies by a signal, without a traceback.

A runner that loses a worker and counts what the others say has lost the failure. Found with its signal.
"""

import ctypes

OP = "reduce_sum"
FUNCTION = "reduce_sum"
FOUND = "SIGSEGV|signal 11|[Ss]egmentation|killed by|ended"
NEEDS = "cpu"
ALLOW = "torch"
_calls = []


def reduce_sum(x, axis, keepdim):
    _calls.append(True)
    if len(_calls) > 1:
        ctypes.string_at(0)
    wide = x.float()
    return wide.sum().to(x.dtype) if axis is None else wide.sum(axis, keepdim).to(x.dtype)
