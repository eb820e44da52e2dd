"""The input is overwritten with the result and handed back: no allocation, half of the memory, and x is gone.

Fooled suites that compare the output alone. Here the input belongs to the caller: "was changed by the call", and "shares
its memory with the input".
"""

OP = "square"
FUNCTION = "square"
FOUND = "was changed by the call|shares its memory|read-only|SIGSEGV|signal"
NEEDS = "cpu"
ALLOW = "torch"


def square(x):
    return x.mul_(x)
