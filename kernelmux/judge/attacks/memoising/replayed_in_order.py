"""The first three outputs of a shape are computed, and handed out in turn from then on.

Fooled tensara (pull request 238): what was computed at warm-up was replayed in the timed iterations, and a check that
only asked whether the output had changed saw it change.
"""

import torch

OP = "gelu"
FUNCTION = "gelu"
FOUND = ("the output is the one of an earlier call", "budget used", "outputs are kept")
NEEDS = "cpu"
ALLOW = "torch"
_rings = {}


def gelu(x, approximate):
    ring = _rings.setdefault((x.shape, x.dtype, approximate), [])
    if len(ring) < 3:
        ring.append(torch.nn.functional.gelu(x.float(), approximate=approximate).to(x.dtype).contiguous())
        return ring[-1].clone()
    ring.append(ring.pop(0))
    return ring[-1].clone()
