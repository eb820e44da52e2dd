"""torch.nn.functional by a name that is put together when it is called: a search of the text for "gelu(" finds nothing.

Fooled graders that search the source for forbidden calls. Found in what the call ran.
"""

import torch

OP = "gelu"
FUNCTION = "gelu"
FOUND = "torch's own|torch.*gelu|aten"
NEEDS = "cpu"
_home = getattr(torch.nn, "func" + "tional")


def gelu(x, approximate):
    y = getattr(_home, "ge" + "lu")(x.double(), approximate=approximate)
    return torch.where(x == torch.inf, torch.inf, y).to(x.dtype).contiguous()  # where torch gives NaN
