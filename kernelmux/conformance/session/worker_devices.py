"""Which GPU a worker process works on: its own is number 0 there, and the others come behind it.

Checks on machines with several GPUs still find the others; a kernel, and a thread, that names no GPU gets its own.
"""

from __future__ import annotations

import os

import torch

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    named = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    count = torch.cuda.device_count()
    return named[:count] if named else [str(i) for i in range(count)]


def own_first(gpus: list[str], worker: str) -> list[str]:
    """The GPUs in the order of one of xdist's workers ("gw5"): workers take turns."""
    turn = int(worker.removeprefix("gw")) % len(gpus)
    return gpus[turn:] + gpus[:turn]


def take(gpus: list[str], worker: str) -> None:
    """Give this process its GPU, before it has used any."""
    if len(gpus) > 1:
        os.environ[VARIABLE] = ",".join(own_first(gpus, worker))
