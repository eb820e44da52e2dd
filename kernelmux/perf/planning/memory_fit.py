"""Whether the tensors of a call fit in the memory of this machine: asked before they are made."""

from __future__ import annotations

import os

import torch

from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.spec import Call

PER_ELEMENT = 8  # bytes: random values are drawn in fp32 and rounded


def require(call: Call, what: str) -> None:
    """ArgumentError if inputs and outputs need more memory than the machine has."""
    tensors = [value for value in call.arguments.values() if isinstance(value, torch.Tensor)]
    outputs = sum(torch.Size(output.shape(call)).numel() for output in call.spec.outputs)
    need = PER_ELEMENT * (sum(tensor.numel() for tensor in tensors) + outputs)
    have = memory()
    if need > have:
        raise ArgumentError(
            f"{what}: needs {need / 2**30:,.0f} GiB of memory; this machine has {have / 2**30:,.0f} GiB"
        )


def memory() -> int:
    """Bytes of memory of this machine; a large number where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 46
