"""Work on a stream of its own, which the events of the current stream do not time.

Fooled KernelBench (pull requests 82 and 106) and tensara: the timed region holds nothing. Here, on a GPU, `streams` says
"work is on another stream", and perf finds the device busy after the call has ended. Without a GPU there are no streams.
"""

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = "work is on another stream"
NEEDS = "gpu"
ALLOW = "torch"
_streams: dict[torch.device, torch.cuda.Stream] = {}


def softmax(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.device not in _streams:
        _streams[x.device] = torch.cuda.Stream(x.device)
    with torch.cuda.stream(_streams[x.device]):
        return out.copy_(torch.softmax(x.float() * scale, axis))
