"""What our modules have in common: they say what they cannot honour, at construction and to `patch` alike."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.fx import Proxy

from kernelmux.registry import catalog
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.errors import ArgumentError, UnsupportedError, shown
from kernelmux.registry.spec import Scalar
from kernelmux.registry.spec.binding import expected


class Ours:
    """Base of every module whose forward is an operator of kernelmux. op: its name."""

    op: ClassVar[str]

    @classmethod
    def obstacle(cls, module: Any) -> str | None:
        """Why a module with these attributes cannot run on the operator: "eps: expected ..., got ...", or None."""
        return None

    def declined(self, *inputs: Any, **named: Any) -> str | None:
        """Why a call of a swapped module with these arguments of its forward runs as before (`fallback`), or None."""
        return None

    def _check(self) -> None:
        """ArgumentError at construction for an argument that the operator cannot honour."""
        if problem := self.obstacle(self):
            raise ArgumentError(f"kernelmux.nn.{type(self).__name__}: {problem}")

    def __prepare_scriptable__(self) -> Any:
        """What torch.jit.script asks for: it would need the source of the operators, which are made from their specs."""
        raise UnsupportedError(
            f"kernelmux.nn.{type(self).__name__}: torch.jit.script compiles the source of a module, and {self.op} has none:"
            f" use torch.export or torch.compile, or torch.jit.trace"
        )


def unfit(op: str, **tensors: torch.Tensor | None) -> str | None:
    """Which of the parameters has a dtype that the operator does not take, or no values yet."""
    allowed = catalog.spec(op).leading.dtypes
    for name, x in tensors.items():
        if isinstance(x, torch.nn.UninitializedParameter):
            return f"{name}: expected a parameter with values, got one that its first call will make"
        if x is not None and x.dtype not in allowed:
            legal = ", ".join(SHORT[dtype] for dtype in allowed)
            return f"{name}: expected dtype one of {legal}, got {SHORT.get(x.dtype, x.dtype)}"
    return None


def outside(op: str, name: str, value: Any) -> str | None:
    """What is wrong with a scalar that the operator limits to a range or to choices, or None."""
    (item,) = [found for found in catalog.spec(op).inputs if isinstance(found, Scalar) and found.name == name]
    legal = expected(item, value)
    return f"{name}: expected {legal}, got {shown(value)}" if legal else None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def precision(cuda: bool | Proxy) -> Any:
    """The precision that torch's own products have in fp32: "tf32" where its flag for the device says so, else "ieee"."""
    if isinstance(cuda, Proxy):
        raise UnsupportedError(
            "kernelmux.nn: torch.fx.symbolic_trace cannot see what a module does for a device: use torch.export or"
            " torch.compile"
        )
    flags: Any = torch.backends.cuda.matmul if cuda else torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    return "tf32" if flags.fp32_precision == "tf32" else "ieee"
