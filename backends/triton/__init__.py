"""Triton kernels, compiled for the GPU at hand, or for sm_90 and run by the emulator where there is none."""

from __future__ import annotations

import importlib.util

import torch

from kernelmux.registry.backend import Backend


def unavailable(device: torch.device) -> str | None:
    """None, or what is missing to run Triton kernels on tensors of `device`."""
    if importlib.util.find_spec("triton") is None:
        return 'the package triton is not installed (pip install "kernelmux[triton]")'
    if device.type == "cpu" and torch.cuda.is_available():
        return "Triton has one driver per process, and here it drives the GPU: move the tensors there"
    return None


if not torch.cuda.is_available() and unavailable(torch.device("cpu")) is None:
    from kernelmux.emulator import triton_driver

    triton_driver.activate()

BACKEND = Backend(name="triton", summary="Triton", priority=20, unavailable=unavailable, emulates=True)
