"""One operator as a C++ extension of torch, on an NVIDIA GPU."""

import shutil

import torch

from kernelmux.registry.backend import Backend


def unavailable(device: torch.device) -> str | None:
    if device.type != "cuda":
        return "its kernels are machine code of a GPU: move the tensors there"
    from torch.utils.cpp_extension import CUDA_HOME, is_ninja_available

    if CUDA_HOME is None:
        return "nvcc compiles it, and there is none: install the CUDA toolkit, or set CUDA_HOME to its folder"
    if not is_ninja_available():
        return "the package ninja is not installed"
    return None if shutil.which("c++") else "there is no C++ compiler (c++)"


BACKEND = Backend(name="load_inline", summary="a C++ extension of torch", priority=5, unavailable=unavailable)
