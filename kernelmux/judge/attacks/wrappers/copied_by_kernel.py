"""torch computes, and a kernel of Triton copies its result into the output: what wrote it is a kernel of its own.

It passes wherever the last writer of the output is asked for. Found in what ran before it.
"""

import torch
import triton
import triton.language as tl

OP = "layer_norm"
FUNCTION = "layer_norm"
FOUND = "torch's own|torch.*layer_norm|aten"
NEEDS = "triton"


@triton.jit
def _layer_norm_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)


def layer_norm(x, weight, bias, eps):
    wide, bias = x.float(), None if bias is None else bias.float()
    y = torch.nn.functional.layer_norm(wide, x.shape[-1:], weight.float(), bias, eps).to(x.dtype).contiguous()
    out = torch.empty_like(y)
    if y.numel():
        _layer_norm_kernel[(triton.cdiv(y.numel(), 256),)](y, out, y.numel(), BLOCK=256)
    return out
