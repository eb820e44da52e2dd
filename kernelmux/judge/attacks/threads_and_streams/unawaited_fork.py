"""Work is given to torch's own pool of threads with `torch.jit.fork`, and nobody waits for it.

No thread of Python is alive. Found by outputs that are not there yet, or change after they were looked at.
"""

import torch

OP = "square"
FUNCTION = "square"
FOUND = ("never written", "thread", "after the call", "budget used", "must be equal", "all outputs are 0")
NEEDS = "cpu"
ALLOW = "torch"


@torch.jit.script
def _work(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    wide = x.to(torch.float64)
    for _ in range(50):
        wide = torch.exp(torch.log(wide * wide) * 0.5)  # it takes its time
    return out.copy_(wide * wide)


@torch.jit.script
def _begun(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    torch.jit.fork(_work, x, out)
    return out


def square(x):
    return _begun(x, torch.empty(x.shape, dtype=x.dtype, device=x.device))
