"""A step of AdamW on one tensor, in place: each of its four tensors is read once, and three are written."""

import math
import struct

import torch

from kernelmux.backends.cuda._launch.runtime import BoundLaunch, Source, cdiv, ctype
from kernelmux.registry.util.cards import remembered

SOURCE = Source(__file__, "_adamw.cu")
_BLOCK = 256
_SIGNATURE = "p* g* m* v* step* by:struct units:i64"


def adamw(
    p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor, step: torch.Tensor, constants: bytes
) -> None:
    """p, m and v after a step with the gradient g; all contiguous. constants: what `packed` gives."""
    width, n = 16 // p.element_size(), p.numel()
    if n % width or any(t.data_ptr() % 16 for t in (p, g, m, v)):
        width = 1
    _launch(n, width, p.dtype)(p, g, m, v, step, constants)


@remembered
def _launch(n: int, width: int, dtype: torch.dtype) -> BoundLaunch:
    kernel = SOURCE.kernel("adamw", _SIGNATURE, ELEMENT=ctype(dtype), WIDTH=width, BLOCK=_BLOCK)
    return kernel.bind(cdiv(n // width, _BLOCK), _BLOCK, n // width)


def packed(lr: float, weight_decay: float, beta1: float, beta2: float, eps: float) -> bytes:
    """The numbers that are the same for all tensors of a group."""
    logs = (math.log(beta) if beta else -math.inf for beta in (beta1, beta2))
    betas = (x for beta, log in zip((beta1, beta2), logs, strict=True) for x in (beta, 1 - beta, log))
    return struct.pack("9f", lr, 1 - lr * weight_decay, eps, *betas)
