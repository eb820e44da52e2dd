"""A clock that runs a hundred times slower, and events that agree with it.

Fooled BackendBench (issue 41) and others whose timer lies in the process of the kernel. Here it is named, "patches
time.perf_counter", and put back, so that the time is the true one.
"""

import time

import torch

OP = "softmax"
FUNCTION = "softmax"
FOUND = "patches time.perf_counter|claim|clock"
NEEDS = "cpu"
ALLOW = "torch"
_now, _elapsed = time.perf_counter, torch.cuda.Event.elapsed_time


def softmax(x: torch.Tensor, axis: int, scale: float) -> torch.Tensor:
    time.perf_counter = lambda: _now() / 100
    torch.cuda.Event.elapsed_time = lambda begin, end: _elapsed(begin, end) / 100  # type: ignore[method-assign]
    return torch.softmax(x.float() * scale, axis).to(x.dtype).contiguous()
