"""Tensors as arrays of numba, and launches on torch's stream. A name with _ in front is no operator."""

from contextlib import nullcontext
from typing import Any

import torch
from numba import cuda


def array(x: torch.Tensor) -> Any:
    """The same memory; the simulator takes numpy's arrays."""
    return cuda.as_cuda_array(x, sync=False) if x.is_cuda else x.numpy()


def launch(kernel: Any, blocks: int, threads: int, x: torch.Tensor, *arguments: Any) -> None:
    """Start a kernel on the device of x, on the stream that torch has made current there."""
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream) if x.is_cuda else 0
        tensors = (array(a) if isinstance(a, torch.Tensor) else a for a in (x, *arguments))
        kernel[blocks, threads, stream](*tensors)
