"""torch.softmax, as it stands: the numbers are right, and nothing was written.

11 of 11 such wrappers passed this suite without a remark while it only compared numbers. Found in what the call ran.
"""

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = "torch's own|torch.*softmax|aten"
NEEDS = "cpu"


def softmax(x, axis, scale):
    return torch.softmax(x.float() * scale, axis).to(x.dtype).contiguous()
