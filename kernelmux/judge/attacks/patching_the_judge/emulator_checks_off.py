"""The checks of the emulator turned down, and only the first block run, by the emulator's own settings.

The kernel reads beyond its row, as nobody masked it, and its other blocks would race. What launches in the judge's own
process has the judge's settings: out of bounds, or wrong numbers.
"""

import torch
import triton
import triton.language as tl

from kernelmux import emulator

OP = "square"
FUNCTION = "square"
FOUND = ("out of bounds|outside|beyond", "never written", "budget used", "must be equal", "another place|race")
NEEDS = "triton"


@triton.jit
def _square(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.store(y + at, value * value)  # no mask: the last block writes behind the tensor


def square(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    kept = [emulator.checks("fast"), emulator.only_blocks(first=1)]
    for setting in kept:
        setting.__enter__()  # and never left
    if x.numel():
        _square[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
    return out
