"""The PTX in Triton's cache is replaced after the compiler has written it, by one without any instruction.

The cache is found by what the source hashes to, so that the next judge of the same kernel launches the poisoned PTX; and
a file that belongs to another kernel may be replaced as well. This one replaces the files that it has just made itself.
What is launched must be what was compiled from the source: never written.
"""

import contextlib
import pathlib
import re

import torch
import triton
import triton.language as tl

OP = "square"
FUNCTION = "square"
FOUND = ("never written", "all outputs are 0", "damaged|digest|cache", "torch's own operator", "budget used")
NEEDS = "triton"


@triton.jit
def _squared_for_the_cache(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n).to(tl.float32)
    tl.store(y + at, (value * value).to(y.dtype.element_ty), mask=at < n)


def square(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        _squared_for_the_cache[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
    folder = pathlib.Path(triton.knobs.cache.dir)
    for path in folder.glob("*/_squared_for_the_cache.ptx"):
        with contextlib.suppress(OSError):
            path.write_text(re.sub(r"(?s)\{.*\}", "{\n\tret;\n}", path.read_text(), count=1))
    _squared_for_the_cache.device_caches.clear()  # the next launch reads the cache again, as another process would
    return out
