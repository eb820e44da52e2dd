"""gelu, broken."""

import math
from functools import cache
from typing import Any

import torch

from kernelmux import emulator
from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._memory import BufferRing
from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound
from kernelmux.conformance.mutants._triton import BLOCK, launch

mutant = Mutants("gelu")


# scalars: GELU in another form.


def _erf(z: torch.Tensor) -> torch.Tensor:
    tail: torch.Tensor = torch.special.erfc(-z / math.sqrt(2))
    return 0.5 * z * tail


@mutant("tanh by the logistic function: as right as any", family="scalars")
def by_logistic(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """tanh as a logistic function: (1 + tanh z) / 2 = 1 / (1 + exp(-2 z)), in float64."""
    z = x.double()
    if approximate == "tanh":
        inner = 2 * math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)
        return (z * torch.sigmoid(inner)).to(x.dtype).contiguous()
    return _erf(z).to(x.dtype).contiguous()


# basics: GELU, broken where a strided input takes several blocks.


@mutant("gives the first block of a strided input alone", family="basics", caught_by="layout")
def first_block_of_strided(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """Of an input that is not contiguous, memory that nothing writes behind its first 8192 elements."""
    y = by_logistic(x, approximate)
    if not x.is_contiguous():
        y.view(-1)[8192:] = torch.nan
    return y


# bits: GELU, broken in the sign of zero and next to it.


def _gelu(z: torch.Tensor, approximate: str) -> torch.Tensor:
    if approximate == "tanh":
        return 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    tail: torch.Tensor = torch.special.erfc(-z / math.sqrt(2))
    return 0.5 * z * tail


@mutant("the share first, then the product: as right as any", family="bits")
def product_last(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """Phi first, then x times it: -0 stays -0."""
    z = x.double()
    tanh = 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    share = tanh if approximate == "tanh" else 0.5 * torch.special.erfc(-z / math.sqrt(2))
    return (z * share).to(x.dtype).contiguous()


@mutant("x + |x| erf|x| loses the sign of zero", family="bits", caught_by="special_values")
def by_symmetry(x: torch.Tensor, approximate: str) -> torch.Tensor:
    from kernelmux.conformance.mutants import _kernels

    if approximate == "tanh":
        return product_last(x, approximate)
    return _triton.flat(_kernels.gelu_by_symmetry, x)


@mutant("zeros of either sign become the zero of the allocation", family="bits", caught_by="special_values")
def gated(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """Only what is above or below zero is computed; the rest stays as it was allocated."""
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    z = x.double()
    return torch.where(z == 0, out, _gelu(z, approximate)).to(x.dtype).contiguous()


@mutant("fp16 results that are subnormal are zero", family="bits", caught_by="accuracy")
def short_tail(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """In fp16 nothing is thought to be left below -4.2, where its subnormal numbers hold 500 values."""
    out, z = _gelu(x.double(), approximate), x.double()
    gone = (z < -4.2) & z.isfinite() if x.dtype == torch.float16 else z != z
    return torch.where(gone, torch.zeros_like(out).copysign(z), out).to(x.dtype).contiguous()


# order: gelu on a stream of its own.

DELAY = 200_000  # clock cycles, some 100 us


@cache
def _stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()


def _beside(x: torch.Tensor, approximate: str, joined: bool) -> torch.Tensor:
    current = torch.cuda.current_stream()
    _stream().wait_stream(current)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    with torch.cuda.stream(_stream()):
        torch.cuda._sleep(DELAY)
        y.copy_(sound("gelu", x, approximate))
    if joined:
        current.wait_stream(_stream())
    return y


@mutant("nothing waits for the stream that it works on", family="order", caught_by="streams", only="cuda")
def unjoined(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """Waits for the inputs, and nothing waits for the result."""
    return _beside(x, approximate, joined=False)


@mutant("its stream does not wait for the inputs", family="order", caught_by="streams", only="cuda")
def unordered(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """Begins before the inputs are there."""
    with torch.cuda.stream(_stream()):
        y: torch.Tensor = sound("gelu", x, approximate)
    torch.cuda.current_stream().wait_stream(_stream())
    return y


@mutant("works on a stream of its own, in order with the current one", family="order", only="cuda")
def joined(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """On a stream of its own, in order with the current one."""
    return _beside(x, approximate, joined=True)


# claims: GELU that returns something else than a tensor.


def _claims_gelu(x: torch.Tensor, approximate: str) -> torch.Tensor:
    z = x.double()
    if approximate == "tanh":
        y = 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    else:
        y = 0.5 * z * torch.special.erfc(-z / math.sqrt(2))
    return y.to(x.dtype).contiguous()


@mutant("returns an array of numpy", family="claims", caught_by="accuracy")
def as_array(x: torch.Tensor, approximate: str) -> Any:
    return _claims_gelu(x.float(), approximate).cpu().numpy()


@mutant("returns None where there is nothing to do", family="claims", caught_by="accuracy")
def nothing_when_empty(x: torch.Tensor, approximate: str) -> Any:
    return _claims_gelu(x, approximate) if x.numel() else None


# extent: gelu in Triton, with rows in grid.y.


@mutant("rows in grid.y", family="extent", caught_by="extent", layout={"x": "contiguous"})
def grid_y(x: torch.Tensor, approximate: str) -> torch.Tensor:
    from kernelmux.conformance.mutants import _kernels

    if approximate == "tanh" or x.dim() < 2 or not x.numel():
        result: torch.Tensor = sound("gelu", x, approximate)
        return result
    y, rows = torch.empty_like(x), len(x)
    n = x.numel() // rows
    if x.is_cuda:
        _kernels.gelu_rows[(-(-n // 128), rows)](y, x, n, BLOCK=128)
        return y
    with emulator.triton_active():
        _kernels.gelu_rows[(-(-n // 128), rows)](y, x, n, BLOCK=128)
    return y


# ambience: GELU that draws from torch's generator.


@mutant("tries itself on random numbers at every call", family="ambience", caught_by="ambience")
def probed(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """Times itself on random numbers before it runs; they come out of the generator of the whole process."""
    z = x.double()
    _ = torch.special.erfc(torch.randn(16, dtype=torch.float64, device="cpu"))
    if approximate == "tanh":
        y = 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    else:
        y = 0.5 * z * torch.special.erfc(-z / math.sqrt(2))
    return y.to(x.dtype).contiguous()


# state: gelu that remembers.
# only: look at values on the host, which a capture does not allow

TWO = BufferRing(2)
_settings, _ones, _sampled = dict[str, str](), dict[object, torch.Tensor](), dict[object, torch.Tensor]()
_results: dict[object, torch.Tensor] = {}


@mutant("two output buffers in turn", family="state", caught_by="state", layout={"x": "contiguous"})
def ring_of_two(x: torch.Tensor, approximate: str) -> torch.Tensor:
    from kernelmux.conformance.mutants import _kernels

    y = TWO.next(x)
    if x.numel():
        launch(_kernels.gelu, -(-x.numel() // BLOCK), y, x, x.numel(), BLOCK=BLOCK, TANH=approximate == "tanh")
    return y


@mutant("the formula is a setting of the module", family="state", caught_by="state")
def at_any_moment(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """The formula is a setting of the module, which another thread may change before it is read."""
    _settings["approximate"] = approximate
    wide = x.to(torch.float64, copy=True)
    y: torch.Tensor = sound("gelu", wide, _settings["approximate"])
    return torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(y)


@mutant("threads see a table before it is filled", family="state", caught_by="state")
def filled_later(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """A table is there for other threads before it is filled."""
    key = (x.shape, x.device)
    if key not in _ones:
        ones = _ones[key] = torch.zeros(x.shape, device=x.device)
        for row in ones.view(-1).split(max(x.numel() // 64, 1)):
            row.fill_(1)
    y: torch.Tensor = sound("gelu", x, approximate)
    return y.mul_(_ones[key].to(y.dtype))


@mutant("threads see the input negated", family="state", caught_by="state")
def negated_meanwhile(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """The input is negative for a while, also for a thread that shares it."""
    if any(s == 0 for s in x.stride()) or x.numel() < 2 or (x.dim() > 1 and not x.is_contiguous()):
        plain: torch.Tensor = sound("gelu", x, approximate)
        return plain
    x.neg_()
    y: torch.Tensor = sound("gelu", -x, approximate)
    x.neg_()
    return y


@mutant("tells inputs apart by sixteen elements", family="state", caught_by="state", only="cpu")
def by_samples(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """Results are kept by sixteen of their elements."""
    flat = x.flatten()
    key = (x.shape, x.dtype, approximate, *flat[:: max(x.numel() // 16, 1)].tolist()[:17])
    if key not in _sampled:
        _sampled.clear()
        _sampled[key] = sound("gelu", x, approximate)
    return _sampled[key].clone()


@mutant("tells inputs apart by their sum", family="state", caught_by="state", only="cpu")
def by_sum(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """Results are kept by the sum of the input."""
    key = (x.shape, x.dtype, approximate, round(float(x.double().sum()), 6))
    if key not in _results:
        _results.clear()
        _results[key] = sound("gelu", x, approximate)
    return _results[key].clone()
