"""Opens files until there are no more descriptors, 65,536 at most, and keeps them.

Whatever needs one afterwards fails in the child: a channel that has to be opened, a library to be loaded. Found as what is
left behind, or as an error of the call.
"""

import os

OP = "square"
FUNCTION = "square"
FOUND = "Too many open files|descriptor|left behind|limit"
NEEDS = "cpu"
ALLOW = "torch"
MOST = 65_536
_open = []


def square(x):
    while len(_open) < MOST:
        _open.append(os.open(os.devnull, os.O_RDONLY))
    return (x.float() * x.float()).to(x.dtype).contiguous()
