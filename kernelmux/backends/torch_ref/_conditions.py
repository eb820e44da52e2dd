"""What calls of torch's functions need, in conditions that the registry does not have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from kernelmux.registry.spec import Call

HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Where:
    """What the call must be, in words; its test; and what a call is that does not pass it."""

    text: str
    holds: Callable[[Call], bool]
    otherwise: str

    def check(self, call: Call) -> str | None:
        return None if self.holds(call) else f"{self.otherwise}, needs {self.text}"


def filled(*names: str) -> Where:
    """Of these tensors none is empty: torch's function does not take it, or does not fill the result."""
    return Where(
        f"elements in {' and '.join(names)}",
        lambda call: all(call.arguments[name].numel() for name in names),
        "there is nothing to compute with",
    )


def at_most(elements: int, *names: str) -> Where:
    """None of these tensors has more elements."""
    return Where(
        f"at most {elements} elements in {' and '.join(names)}",
        lambda call: all(call.arguments[name].numel() <= elements for name in names),
        "a tensor is too large for cuDNN",
    )


def few_rows(name: str) -> Where:
    """So few rows that torch's CUDA kernels of norms do not keep the parts of a sum over them in 16 bits."""
    return Where(
        f"at most {MANY_ROWS} rows of {name} on a GPU",
        lambda call: not call.arguments[name].is_cuda or call.arguments[name].numel() <= MANY_ROWS * call.axes["N"],
        "torch would round the parts of the sum over the rows",
    )


MANY_ROWS = 2**16

USUAL = Where(
    "fp16 or bf16 on a GPU, fp32 on a CPU",
    lambda call: (call.dtype in HALVES) == (call.device.type != "cpu"),
    "torch's kernel for the dtype rounds more often, or there is none",
)

# On AMX oneDNN reads behind rows whose K is no multiple of 32, up to version 3.14 (its issue 5717; torch 2.13 has it), and
# what is no number there makes NaN of a row, though it is multiplied by zero.
INSIDE_ROWS = Where(
    "fp16, K a multiple of 32, or a GPU",
    lambda call: call.dtype != torch.bfloat16 or call.device.type != "cpu" or call.axes["K"] % 32 == 0,
    "oneDNN may read behind rows of bf16",
)
