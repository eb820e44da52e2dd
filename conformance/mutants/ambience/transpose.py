"""Transpose that changes how many threads the process has."""

import torch

from kernelmux.registry.backend import Implementation


def _transpose(x: torch.Tensor) -> torch.Tensor:
    return x.t().clone(memory_format=torch.contiguous_format)


def threads_put_back(x: torch.Tensor) -> torch.Tensor:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _transpose(x)
    finally:
        torch.set_num_threads(threads)


def one_thread_left(x: torch.Tensor) -> torch.Tensor:
    torch.set_num_threads(1)
    return _transpose(x)


VARIANTS = {
    "threads_put_back": Implementation(fn=threads_put_back, idea="works in one thread and puts the number back"),
    "one_thread_left": Implementation(fn=one_thread_left, idea="leaves the process with one thread"),
}

CAUGHT_BY = {"one_thread_left": "ambience"}
