"""gelu that remembers."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from kernelmux.conformance.mutants._sound import sound
from kernelmux.conformance.mutants._triton import BLOCK, launch
from kernelmux.conformance.mutants.state._memory import Ring
from kernelmux.registry.backend import Implementation

TWO = Ring(2)
_results: dict[object, torch.Tensor] = {}


@triton.jit
def _gelu_kernel(y, x, n, BLOCK: tl.constexpr, TANH: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0).to(tl.float32)
    if TANH:
        inner = 0.7978845608028654 * (v + 0.044715 * v * v * v)
        r = 0.5 * v * (1 + libdevice.tanh(inner))
    else:
        r = 0.5 * v * libdevice.erfc(-v * 0.7071067811865476)
    tl.store(y + i, r, mask=i < n)


def ring_of_two(x: torch.Tensor, approximate: str) -> torch.Tensor:
    y = TWO.next(x)
    if x.numel():
        launch(_gelu_kernel, -(-x.numel() // BLOCK), y, x, x.numel(), BLOCK=BLOCK, TANH=approximate == "tanh")
    return y


def by_sum(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """Results are kept by the sum of the input."""
    key = (x.shape, x.dtype, approximate, round(float(x.double().sum()), 6))
    if key not in _results:
        _results.clear()
        _results[key] = sound("gelu", x, approximate)
    return _results[key].clone()


VARIANTS = {
    "ring_of_two": Implementation(fn=ring_of_two, idea="two output buffers in turn", layout={"x": "contiguous"}),
    "by_sum": Implementation(fn=by_sum, idea="tells inputs apart by their sum"),
}

CAUGHT_BY = {"ring_of_two": "state", "by_sum": "state"}
ONLY_CPU = {"by_sum"}  # looks at values on the host, which a capture does not allow
