"""Variables that later processes, libraries and backends read: which backend is chosen, what is preloaded, what starts.

A judge that starts its next child with a copy of its environment, after the candidate ran in its own process, hands them
on. In a child they end with it; here they are named: the environment was changed.
"""

import os

import torch

OP = "log_softmax"
FUNCTION = "log_softmax"
FOUND = ("environ|variable|changed", "all outputs are 0")
NEEDS = "cpu"
ALLOW = "torch"
LEFT = {
    "KERNELMUX_BACKEND": "torch_ref",
    "TRITON_INTERPRET": "1",
    "PYTHONSTARTUP": "startup.py",
    "PYTHONOPTIMIZE": "2",  # no assertions
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "LD_PRELOAD": "",
}


def log_softmax(x, axis):
    os.environ.update(LEFT)
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
