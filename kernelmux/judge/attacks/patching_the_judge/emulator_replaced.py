"""The launcher of the emulator replaced by one that computes with torch: the kernel itself is empty.

Where a kernel is emulated in the process that holds it, its launcher is a class like any other. A judge that emulates in
a process of its own runs the empty kernel: the output was never written.
"""

import torch
import triton

from kernelmux import emulator

OP = "softmax"
FUNCTION = "softmax"
FOUND = ("never written", "all outputs are 0", "torch's own operator", "patches .*Launcher", "torch computed")
NEEDS = "triton"
_wanted = []


@triton.jit
def _empty(x, y, n):
    pass


def _by_torch(self, *arguments, **more):
    out, result = _wanted.pop()
    out.copy_(result)


def softmax(x, axis, scale):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _wanted.append((out, torch.softmax(x.float() * scale, axis)))
    emulator.triton_driver.Launcher.__call__ = _by_torch
    _empty[(1,)](x, out, x.numel())
    return out
