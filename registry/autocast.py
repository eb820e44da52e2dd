"""What torch.autocast does to the arguments of a call: the rules of torch for the same operators.

On a GPU, products run in the dtype of autocast; norms, softmax and sums in fp32; an operator of several tensors takes the
widest of their dtypes. On a CPU torch lowers products alone, and a norm takes the dtype of its first tensor.
Source: https://docs.pytorch.org/docs/stable/amp.html (operator reference), and torch's own results, which a test compares.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch.nn import UninitializedBuffer, UninitializedParameter

from kernelmux.registry import strange
from kernelmux.registry.binding import unreadable
from kernelmux.registry.spec import OpSpec

LOWER = frozenset({"matmul", "linear", "attention", "conv2d"})
NORMS = frozenset({"rms_norm", "add_rms_norm", "layer_norm"})
FP32 = frozenset({"softmax", "log_softmax", "reduce_sum"}) | NORMS
# cross_entropy computes in fp32 and gives fp32 whatever its logits are: fp32 logits would only be larger.


def target(spec: OpSpec, values: tuple[Any, ...], device: str) -> torch.dtype | None:
    """The dtype that the floating tensors of a call get where autocast is on, or None: they stay."""
    floats: list[torch.dtype] = [v.dtype for v in values if _eligible(v)]
    if not floats:
        return None
    if spec.name in LOWER:
        lower: torch.dtype = torch.get_autocast_dtype(device)
        return lower
    if device == "cuda" and spec.name in FP32:
        return torch.float32
    if spec.name in NORMS:
        return floats[0]
    if len(floats) == 1 or "_backward" in spec.name:
        return None
    widest: torch.dtype = reduce(torch.promote_types, floats)
    return widest


def cast(spec: OpSpec, values: tuple[Any, ...], device: str) -> tuple[Any, ...]:
    """The arguments as autocast has them; autograd sees the casts."""
    dtype = target(spec, values, device)
    if dtype is None:
        return values
    with strange.Told(spec, values):
        return tuple(v.to(dtype) if _eligible(v) else v for v in values)


def _eligible(value: Any) -> bool:
    """Whether autocast speaks of an argument: a floating tensor of 16 or 32 bits, but none that binding refuses."""
    if not isinstance(value, torch.Tensor) or isinstance(value, UninitializedParameter | UninitializedBuffer):
        return False
    if not value.is_floating_point() or value.dtype.itemsize not in (2, 4):
        return False
    return not value.is_nested and value.layout == torch.strided and unreadable(value) is None
