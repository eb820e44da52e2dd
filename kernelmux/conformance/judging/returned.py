"""What a call returned: plain tensors, each in memory of its own, and finished."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelmux.conformance.inputs.trials import same_bits, same_memory
from kernelmux.registry.spec import OpSpec

LATER = 0.06  # seconds after a call in which nothing may change any more

Tensors = Sequence[torch.Tensor]


def odd(spec: OpSpec, outputs: Tensors) -> str:
    """Which output is no plain tensor, or "": a subclass may compute when it is read."""
    for output, got in zip(spec.outputs, outputs, strict=True):
        if type(got) is not torch.Tensor:
            kind = f"{type(got).__module__}.{type(got).__qualname__}"
            return f"{output.name}: expected a plain torch.Tensor, got {kind}"
        if got.layout != torch.strided:
            return f"{output.name}: expected a torch.Tensor, got {got.layout}"
    return ""


def shared(spec: OpSpec, outputs: Tensors, values: Sequence[Any]) -> str:
    """Which output is a view of an input, or of the memory of another output, or ""."""
    filled = [(o.name, got) for o, got in zip(spec.outputs, outputs, strict=True) if got.numel()]
    for item, value in zip(spec.inputs, values, strict=True):
        for name, got in filled:
            if isinstance(value, torch.Tensor) and same_memory(got, value):
                return f"{name} shares its memory with the input {item.name}"
    for turn, (name, got) in enumerate(filled):
        for later, other in filled[turn + 1 :]:
            if same_memory(got, other):
                return f"{name} shares its memory with {later}"
    return ""


def unfinished(spec: OpSpec, call: Callable[[], Tensors], values: Sequence[Any]) -> str:
    """What of a call goes on behind it, or "": threads that it left, outputs and inputs that change later."""
    running = set(threading.enumerate())
    outputs = call()
    left = [t.name for t in threading.enumerate() if t not in running]
    names = [*(o.name for o in spec.outputs), *(i.name for i in spec.inputs)]
    held = [(n, x, x.clone()) for n, x in zip(names, (*outputs, *values), strict=True) if isinstance(x, torch.Tensor)]
    time.sleep(LATER)
    changed = [name for name, x, copy in held if not same_bits(x, copy)]
    if changed:
        return f"{', '.join(changed)} changed after the call had returned"
    return f"the call left {len(left)} threads running: {', '.join(left)}" if left else ""
