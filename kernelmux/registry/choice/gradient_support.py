"""Which tensors of a call can have a gradient, and from which backends."""

from __future__ import annotations

import torch

from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.spec.gradient import Gradient, NoGradient
from kernelmux.registry.spec.signature import Output, Spec


def real(output: Output) -> bool:
    """Whether an output may be differentiated: it is not of integers."""
    return not isinstance(output.dtype, torch.dtype) or output.dtype.is_floating_point


def lack(spec: Spec, backend: str, tensor: str) -> str | None:
    """Why the kernels of a backend cannot give the gradient of one tensor of a call, or None; "": whichever backend."""
    found = spec.gradient
    if not any(map(real, spec.outputs)):
        return None  # integers: nothing to differentiate, as in torch
    if found is None or isinstance(found, NoGradient):
        return f"{spec.name} has no gradient" + (f" ({found.reason})" if found else "")
    if tensor not in found.tensors:
        return f"{spec.name} has a gradient for {', '.join(found.tensors)} alone"
    if backend and isinstance(found, Gradient) and not registered.implements(backend, found.op):
        return f"{backend} has no {found.op}, which computes it"
    return None
