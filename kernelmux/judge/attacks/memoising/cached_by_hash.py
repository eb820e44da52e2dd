"""The output remembered by a hash of the first and the last 64 bytes of each row of the input.

Large inputs are hashed in no time, and a suite that draws all values anew never meets two of the same hash. Found where
one value in the middle of a row changes.
"""

import hashlib

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = ("the output is the one of an earlier call", "outputs are kept", "budget used")
NEEDS = "cpu"
ALLOW = "torch"
EDGE = 8  # elements at each end
_known = {}


def softmax(x, axis, scale):
    ends = torch.cat([x.narrow(axis, 0, min(EDGE, x.shape[axis])), x[..., -EDGE:]], axis) if axis == x.dim() - 1 else x
    content = ends.contiguous().flatten().view(torch.uint8).cpu().numpy().tobytes()
    key = (hashlib.sha256(content).digest(), x.shape, x.dtype, x.device, axis, scale)
    if key not in _known:
        _known[key] = torch.softmax(x.float() * scale, axis).to(x.dtype).contiguous()
    return _known[key].clone()
