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

from kernelmux.registry.interop import torch_errors
from kernelmux.registry.spec.binding import unreadable
from kernelmux.registry.spec.signature import Spec

LOWER = ("matmul", "linear", "attention", "conv2d")
NORMS = ("rms_norm", "add_rms_norm", "layer_norm")
FP32 = ("softmax", "log_softmax", "reduce_sum")
# cross_entropy computes in fp32 and gives fp32 whatever its logits are: fp32 logits would only be larger.
OURS = {**dict.fromkeys(LOWER, "lower"), **dict.fromkeys(NORMS, "norm"), **dict.fromkeys(FP32, "fp32")}


def rule(spec: Spec) -> str:
    """What autocast does to the tensors of an operator, one of `spec.AUTOCAST`: as its spec says, or as torch does."""
    return spec.autocast or OURS.get(spec.name) or ("keep" if "_backward" in spec.name else "widest")


def target(spec: Spec, values: tuple[Any, ...], device: str) -> torch.dtype | None:
    """The dtype that the floating tensors of a call get where autocast is on, or None: they stay."""
    floats: list[torch.dtype] = [v.dtype for v in values if _eligible(v)]
    how = rule(spec)
    if not floats or how == "keep":
        return None
    if how == "lower":
        lower: torch.dtype = torch.get_autocast_dtype(device)
        return lower
    if how in ("fp32", "norm") and device == "cuda":
        return torch.float32
    if how == "norm":
        return floats[0]
    widest: torch.dtype = reduce(torch.promote_types, floats)
    return widest if len(floats) > 1 else None


def cast(spec: Spec, values: tuple[Any, ...], device: str) -> tuple[Any, ...]:
    """The arguments as autocast has them; autograd sees the casts."""
    dtype = target(spec, values, device)
    if dtype is None:
        return values
    with torch_errors.TorchErrorTranslation(spec, values):
        return tuple(v.to(dtype) if _eligible(v) else v for v in values)


def _eligible(value: Any) -> bool:
    """Whether autocast speaks of an argument: a floating tensor of 16 or 32 bits, but none that binding refuses."""
    if not isinstance(value, torch.Tensor) or isinstance(value, UninitializedParameter | UninitializedBuffer):
        return False
    if not value.is_floating_point() or value.dtype.itemsize not in (2, 4):
        return False
    return not value.is_nested and value.layout == torch.strided and unreadable(value) is None
