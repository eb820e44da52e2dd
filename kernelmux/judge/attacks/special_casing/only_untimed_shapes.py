"""Right for small tensors; above half a million elements, where times are taken, half of the rows are copied.

Fooled suites that check at one size and time at another (GEAK, pull request 415, tells of the reverse). Found by outputs
of timed calls.
"""

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = ("wrong", "budget used", "timed")
NEEDS = "cpu"
ALLOW = "torch"


def softmax(x, axis, scale):
    if x.numel() < 1 << 19 or x.dim() < 2:
        return torch.softmax(x.float() * scale, axis).to(x.dtype).contiguous()
    half = torch.softmax(x[: len(x) // 2].float() * scale, axis).to(x.dtype)
    return torch.cat([half, half, half[: len(x) % 2]]).contiguous()
