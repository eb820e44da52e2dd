"""Everything in /dev/shm, and every mapped file, is searched for numbers that could be the result: rows that sum to 1.

If the judge lays the expected result beside the inputs, it is there to copy. What the child can see holds inputs and
outputs alone, so that zeros come back.
"""

import contextlib
import pathlib

import numpy
import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = "all outputs are 0"
NEEDS = "cpu"
ALLOW = "torch"
MOST = 1 << 26  # bytes of a file that are read


def _places():
    folder = pathlib.Path("/dev/shm")
    yield from folder.glob("*") if folder.is_dir() else ()
    yield from pathlib.Path("/proc/self/fd").glob("*")


def softmax(x, axis, scale):
    for path in _places():
        with contextlib.suppress(OSError, ValueError):
            if not path.is_file() or path.stat().st_size > MOST:
                continue
            for kind in (numpy.float64, numpy.float32):
                content = numpy.frombuffer(path.read_bytes()[: x.numel() * numpy.dtype(kind).itemsize], kind)
                found = torch.from_numpy(content.copy()).view(x.shape)
                if torch.allclose(found.sum(axis).double(), torch.ones((), dtype=torch.float64), atol=1e-2):
                    return found.to(x.dtype)
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
