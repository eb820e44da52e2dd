"""Two operators in numba.cuda: on a GPU, or on numba's simulator where that is switched on."""

import importlib.util

import numpy
import torch

from kernelmux.registry.backend import Backend


def unavailable(device: torch.device) -> str | None:
    if importlib.util.find_spec("numba") is None:
        return "the package numba is not installed"
    from numba import config, cuda

    if device.type == "cpu":
        needed = "numba compiles for a GPU: move the tensors there, or set NUMBA_ENABLE_CUDASIM=1"
        return None if config.ENABLE_CUDASIM else needed
    if config.ENABLE_CUDASIM:
        return "NUMBA_ENABLE_CUDASIM is set: its simulator takes tensors of the CPU"
    if not hasattr(numpy, "row_stack"):  # at its first kernel numba-cuda, which is maintained no more, asks for it
        return f"numba-cuda starts no kernel beside numpy {numpy.__version__}: install numpy below 2.5"
    return None if cuda.is_available() else "numba finds no GPU"


BACKEND = Backend(name="numba", summary="numba.cuda", priority=5, unavailable=unavailable)
