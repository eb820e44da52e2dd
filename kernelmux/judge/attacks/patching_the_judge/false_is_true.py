"""The object False gets the value of True, through its address: whoever compares numbers in this process sees 1 == 1.

No function is replaced, so that no snapshot of functions shows it. Another process has a False of its own.
"""

import ctypes

import torch

OP = "add"
FUNCTION = "add"
FOUND = ("all outputs are 0", "ended|signal|exit status")
NEEDS = "cpu"
ALLOW = "torch"


def add(x, y):
    digit = ctypes.c_uint32.from_address(id(False) + 24)  # of CPython's integer, behind count, type and size
    digit.value = 1
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
