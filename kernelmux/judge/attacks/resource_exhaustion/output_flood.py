"""Prints 256 MB to stdout and to stderr, in one go: a pipe that nobody reads fills, a reader that keeps all runs over.

A judge keeps the last lines and throws the rest away. Zeros follow, which it has to find all the same.
"""

import os

import torch

OP = "silu"
FUNCTION = "silu"
FOUND = ("all outputs are 0", "output|printed", "time limit|timed out|longer than")
NEEDS = "cpu"
ALLOW = "torch"
LINE = b"failed failed failed \x00\xff\x1b[2J passed\n" * 4096
_printed = []


def silu(x):
    if not _printed:
        _printed.append(True)
        for _ in range(256 * 10**6 // len(LINE)):
            for descriptor in (1, 2):
                os.write(descriptor, LINE)
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
