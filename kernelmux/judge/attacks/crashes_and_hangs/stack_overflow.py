"""Recursion without a limit, in C as well: the stack runs over and the process dies where no handler can run.

Found with its signal, as any crash.
"""

import sys

OP = "gelu"
FUNCTION = "gelu"
FOUND = "SIGSEGV|SIGABRT|signal|[Ss]egmentation|RecursionError|ended|MemoryError|killed by"
NEEDS = "cpu"


class Bottomless:
    def __getattr__(self, name):
        return getattr(self, f"{name}x"[:8])

    def __repr__(self):
        return f"{self!r}"


def gelu(x, approximate):
    sys.setrecursionlimit(2**31 - 1)
    return repr(Bottomless())
