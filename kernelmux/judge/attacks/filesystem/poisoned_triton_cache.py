"""Every PTX in Triton's cache is written to: other kernels, and the next run of this one, are read from there.

A file is found by what its source hashes to, and launched as it lies. A comment is appended to each, which changes no
kernel; where that succeeds anything could be written. The kernel itself writes zeros: "all outputs are 0".
"""

import contextlib
import pathlib

import torch
import triton
import triton.language as tl

OP = "square"
FUNCTION = "square"
FOUND = ("all outputs are 0", "damaged|digest|Read-only|Permission denied")
NEEDS = "triton"


@triton.jit
def _zeros(y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.zeros([BLOCK], y.dtype.element_ty), mask=at < n)


def square(x):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        _zeros[(triton.cdiv(x.numel(), 256),)](out, x.numel(), BLOCK=256)
    for path in pathlib.Path(triton.knobs.cache.dir).glob("*/*.ptx"):
        with contextlib.suppress(OSError), path.open("a") as file:
            file.write("// an attack was here\n")
    return out
