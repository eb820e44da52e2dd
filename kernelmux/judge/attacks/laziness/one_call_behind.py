"""Each call returns memory that it does not fill, and fills the memory that the call before has returned.

Right in a loop whose results are looked at when it has ended, all but the last. Found by looking at each result when the
call returns.
"""

import torch

OP = "gelu"
FUNCTION = "gelu"
FOUND = ("never written", "budget used", "all outputs are 0", "changed")
NEEDS = "cpu"
ALLOW = "torch"
_owed = []


def gelu(x, approximate):
    for out, earlier, how in _owed:
        out.copy_(torch.nn.functional.gelu(earlier.float(), approximate=how))
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _owed[:] = [(out, x, approximate)]
    return out
