"""The suite's own files are opened for writing: what the next process imports would then agree with anything.

It writes back the first byte of each that it may write, and changes nothing. Fooled BackendBench (issue 41): editing the
harness. The project is not there to be written; zeros are judged.
"""

import contextlib
import pathlib
import sys

import torch

OP = "silu"
FUNCTION = "silu"
FOUND = ("all outputs are 0", "Read-only|Permission denied|wrote|written to")
NEEDS = "cpu"
ALLOW = "torch"


def silu(x):
    for folder in sys.path:
        for path in pathlib.Path(folder or ".", "kernelmux", "conformance").glob("*.py"):
            with contextlib.suppress(OSError), path.open("r+b") as file:
                first = file.read(1)
                file.seek(0)
                file.write(first)
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
