"""Three operators in numpy, on the CPU."""

import torch

from kernelmux.registry.backend import Backend


def unavailable(device: torch.device) -> str | None:
    return None if device.type == "cpu" else "numpy computes on the CPU: move the tensors there"


BACKEND = Backend(name="numpy", summary="numpy on the CPU", priority=5, unavailable=unavailable)
