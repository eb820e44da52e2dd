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
_settings, _ones, _sampled = dict[str, str](), dict[object, torch.Tensor](), dict[object, torch.Tensor]()
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


def at_any_moment(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """The formula is a setting of the module, which another thread may change before it is read."""
    _settings["approximate"] = approximate
    wide = x.to(torch.float64, copy=True)
    y: torch.Tensor = sound("gelu", wide, _settings["approximate"])
    return torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(y)


def filled_later(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """A table is there for other threads before it is filled."""
    key = (x.shape, x.device)
    if key not in _ones:
        ones = _ones[key] = torch.zeros(x.shape, device=x.device)
        for row in ones.view(-1).split(max(x.numel() // 64, 1)):
            row.fill_(1)
    y: torch.Tensor = sound("gelu", x, approximate)
    return y.mul_(_ones[key].to(y.dtype))


def negated_meanwhile(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """The input is negative for a while, also for a thread that shares it."""
    if any(s == 0 for s in x.stride()) or x.numel() < 2 or (x.dim() > 1 and not x.is_contiguous()):
        plain: torch.Tensor = sound("gelu", x, approximate)
        return plain
    x.neg_()
    y: torch.Tensor = sound("gelu", -x, approximate)
    x.neg_()
    return y


def by_samples(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """Results are kept by sixteen of their elements."""
    flat = x.flatten()
    key = (x.shape, x.dtype, approximate, *flat[:: max(x.numel() // 16, 1)].tolist()[:17])
    if key not in _sampled:
        _sampled.clear()
        _sampled[key] = sound("gelu", x, approximate)
    return _sampled[key].clone()


def by_sum(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """Results are kept by the sum of the input."""
    key = (x.shape, x.dtype, approximate, round(float(x.double().sum()), 6))
    if key not in _results:
        _results.clear()
        _results[key] = sound("gelu", x, approximate)
    return _results[key].clone()


VARIANTS = {
    "ring_of_two": Implementation(fn=ring_of_two, idea="two output buffers in turn", layout={"x": "contiguous"}),
    "at_any_moment": Implementation(fn=at_any_moment, idea="the formula is a setting of the module"),
    "filled_later": Implementation(fn=filled_later, idea="threads see a table before it is filled"),
    "negated_meanwhile": Implementation(fn=negated_meanwhile, idea="threads see the input negated"),
    "by_samples": Implementation(fn=by_samples, idea="tells inputs apart by sixteen elements"),
    "by_sum": Implementation(fn=by_sum, idea="tells inputs apart by their sum"),
}

CAUGHT_BY = dict.fromkeys(VARIANTS, "state")
ONLY_CPU = {"by_sum", "by_samples"}  # look at values on the host, which a capture does not allow
