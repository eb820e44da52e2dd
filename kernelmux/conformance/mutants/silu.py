"""silu, broken."""

import threading
from typing import Any

import torch

from kernelmux.conformance.mutants import _triton
from kernelmux.conformance.mutants._mutant import Mutants
from kernelmux.conformance.mutants._sound import sound

mutant = Mutants("silu")


# bits: SiLU, broken where the formula as it stands has no value.


@mutant("-inf / inf, where silu is 0", family="bits", caught_by="special_values")
def by_division(x: torch.Tensor) -> torch.Tensor:
    from kernelmux.conformance.mutants import _kernels

    return _triton.flat(_kernels.silu_by_division, x)


@mutant("the bound that keeps -inf out keeps NaN out as well", family="bits", caught_by="special_values")
def cut_off(x: torch.Tensor) -> torch.Tensor:
    from kernelmux.conformance.mutants import _kernels

    return _triton.flat(_kernels.silu_cut_off, x)


@mutant("the quotient, and 0 at -inf: as right as any", family="bits")
def limit_last(x: torch.Tensor) -> torch.Tensor:
    """The quotient, then the limit where it is NaN and x is not."""
    z = x.double()
    y = z / (1 + torch.exp(-z))
    return torch.where(z == -torch.inf, 0.0, y).to(x.dtype).contiguous()


# extent: A way of its own for some lengths.


@mutant("the way for multiples of 2^20 leaves the last element out", family="extent", caught_by="extent")
def multiples_of_a_million(x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = sound("silu", x)
    if x.numel() and x.numel() % 2**20 == 0:
        y.view(-1)[-1] = 0
    return y


# claims: What comes back is no plain tensor.


class Lazy(torch.Tensor):
    """A tensor whose values are computed when something is first asked of it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*(_computed(x) if isinstance(x, cls) else x for x in args), **(kwargs or {}))


def _computed(x: torch.Tensor) -> torch.Tensor:
    state = x.__dict__
    if "y" not in state:
        state["y"] = sound("silu", state.pop("pending"))
    result: torch.Tensor = state["y"]
    return result


@mutant("a tensor of a class that computes when it is read", family="claims", caught_by="accuracy")
def lazy(x: torch.Tensor) -> torch.Tensor:
    y: Any = torch.empty(x.shape, dtype=x.dtype, device=x.device).as_subclass(Lazy)
    y.__dict__["pending"] = x.clone()
    result: torch.Tensor = y
    return result


@mutant("a parameter", family="claims", caught_by="accuracy")
def parameter(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.Parameter(sound("silu", x), requires_grad=False)


# state: Work that goes on behind the call.


@mutant("a thread reads the input when the call has long returned", family="state", caught_by="state")
def read_later(x: torch.Tensor) -> torch.Tensor:
    """For a statistic, that small calls have no part in."""
    if x.numel() >= 16:
        threading.Timer(0.3, lambda: x.abs()).start()
    result: torch.Tensor = sound("silu", x)
    return result
