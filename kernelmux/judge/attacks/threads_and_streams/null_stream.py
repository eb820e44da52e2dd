"""Everything is launched on the device's default stream, whatever stream of torch is current.

Right where nobody sets a stream. A call under `torch.cuda.stream(s)` races with what s still has to do, and is not in a
graph. Found by `streams`.
"""

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = "work is on another stream|stream"
NEEDS = "gpu"
ALLOW = "torch"


def softmax(x, axis, scale):
    with torch.cuda.stream(torch.cuda.default_stream(x.device)):
        return torch.softmax(x.float() * scale, axis).to(x.dtype).contiguous()
