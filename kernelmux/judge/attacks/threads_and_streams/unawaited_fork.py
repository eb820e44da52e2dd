"""Work is given to torch's own pool of threads with `torch.jit.fork`, and nobody waits for it.

No thread of Python is alive. Found by outputs that are not there yet, or change after they were looked at.
"""

import torch

OP = "gelu"
FUNCTION = "gelu"
FOUND = ("never written", "thread", "after the call", "budget used", "all outputs are 0")
NEEDS = "cpu"
ALLOW = "torch"


@torch.jit.script
def _work(x: torch.Tensor, out: torch.Tensor, how: str) -> torch.Tensor:
    for _ in range(20):
        out.copy_(torch.gelu(x, approximate=how))
    return out


@torch.jit.script
def _begun(x: torch.Tensor, out: torch.Tensor, how: str) -> torch.Tensor:
    torch.jit.fork(_work, x, out, how)
    return out


def gelu(x, approximate):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _begun(x.float(), out, approximate)
    return out
