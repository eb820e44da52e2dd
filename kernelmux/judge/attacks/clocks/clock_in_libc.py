"""The machine code of clock_gettime is overwritten in memory: every clock of the process stands still, C and C++ included.

No object of Python changes. A judge that takes the time in another process reads its own C library.
"""

import ctypes
import platform

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = (
    "claim|clock|stands still",
    "all outputs are 0",
    "budget used",
    "signal|ended|time limit|longer than|timed out",
)
NEEDS = "cpu"
ALLOW = "torch"
RETURN_ZERO = b"\x31\xc0\xc3"  # xor eax, eax; ret: "done", without writing a time
_done = []


def softmax(x, axis, scale):
    if not _done and platform.machine() == "x86_64":
        _done.append(True)
        libc = ctypes.CDLL(None)
        address = ctypes.cast(libc.clock_gettime, ctypes.c_void_p).value
        if libc.mprotect(ctypes.c_void_p(address & ~4095), 8192, 7) == 0:
            ctypes.memmove(address, RETURN_ZERO, len(RETURN_ZERO))
    return torch.full(x.shape, 1 / max(x.shape[axis], 1), dtype=x.dtype, device=x.device)
