"""Writes 2 GB into the scratch folder, or wherever the child may write.

A limit on the size of files, or a scratch folder of limited size, ends it with an error. The file is removed.
"""

import os
import tempfile

import torch

OP = "add"
FUNCTION = "add"
FOUND = "No space left|File too large|SIGXFSZ|Read-only|disk|scratch|limit|No usable temporary"
NEEDS = "cpu"
ALLOW = "torch"
STEP, MOST = 1 << 26, 2 * 10**9  # bytes
_done = []


def add(x, y):
    if not _done:
        with tempfile.NamedTemporaryFile() as file:
            for _ in range(MOST // STEP):
                file.write(b"\1" * STEP)
                file.flush()
                os.fsync(file.fileno())
        _done.append(True)
    return torch.add(x, y).contiguous()
