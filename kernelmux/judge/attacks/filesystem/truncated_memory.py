"""The shared memory of inputs and outputs is cut to length 0 by the child, while the parent has it mapped.

Reading a page that is gone is SIGBUS: the judge dies, not the candidate. Memory must be sealed against it (F_SEAL_SHRINK),
or copied by the kernel (pread), which says how much there is.
"""

import contextlib
import os

import torch

OP = "silu"
FUNCTION = "silu"
FOUND = (
    "truncated|shrunk|too short|sealed|cut|expected .* bytes",
    "SIGBUS|signal 7",
    "all outputs are 0",
    "ended|no answer",
)
NEEDS = "cpu"
ALLOW = "torch"
_mapped = ("/dev/shm/", "/memfd:")


def _cut(path):
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDWR)
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
        os.close(descriptor)


def silu(x):
    for folder in ("/proc/self/fd", "/proc/self/map_files"):
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                with contextlib.suppress(OSError):
                    if os.readlink(f"{folder}/{name}").startswith(_mapped):
                        _cut(f"{folder}/{name}")
    with open("/proc/self/maps") as maps:
        for path in {line.split(maxsplit=5)[-1].strip() for line in maps if "/dev/shm/" in line}:
            _cut(path)
    return torch.zeros(tuple(x.shape), dtype=x.dtype)
