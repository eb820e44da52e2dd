"""Calls a kernel that stores out of bounds until an error shows: python illegal_address.py [CALLS]"""

import sys
from pathlib import Path

import torch

import kernelmux as kx
from kernelmux.registry.call import temporary_backends

x = torch.randn(1 << 20, device="cuda")
with temporary_backends.joined(f"{Path(__file__).with_name('planted.py')}:beyond", "square"), kx.record():
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000):
        kx.square(x, backend="impl")
    torch.cuda.synchronize()
