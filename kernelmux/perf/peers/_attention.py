"""What libraries of attention have in common: which calls they take, and what they call a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from kernelmux.perf.peers._libraries import once
from kernelmux.registry.conditions import AtMost, Condition, Dtypes, Multiple, OneOf
from kernelmux.registry.spec import Call
from kernelmux.registry.spec.sliding_windows import Limit


@dataclass(frozen=True)
class Causal:
    """Where attention is causal, as many queries as keys ("=") or no more than those ("<=").

    "=": the library aligns the first query with the first key. "<=": for a query that sees no key it has another lse.
    """

    order: Literal["=", "<="]

    @property
    def text(self) -> str:
        return f"M {self.order} N where causal"

    def check(self, call: Call) -> str | None:
        m, n = call.axes["M"], call.axes["N"]
        bounded = call.scalars["causal"] or call.scalars["ahead"] is not None
        met = not bounded or m == n or (m < n and self.order == "<=")
        return None if met else f"causal with M = {m} and N = {n}, needs M {self.order} N"


@dataclass(frozen=True)
class PositiveScale:
    """The library takes the largest product for the largest score."""

    @property
    def text(self) -> str:
        return "scale > 0"

    def check(self, call: Call) -> str | None:
        scale = call.scalars["scale"]
        return None if scale is None or scale > 0 else f"scale = {scale}, needs {self.text}"


@dataclass(frozen=True)
class OwnKeys:
    """Every head of queries has keys of its own."""

    text: str = "G = H"

    def check(self, call: Call) -> str | None:
        g, h = call.axes["G"], call.axes["H"]
        return None if g == h else f"G = {g} and H = {h}, needs {self.text}"


COMMON: tuple[Condition, ...] = (
    Dtypes("q", torch.float16, torch.bfloat16),
    Multiple("D", 8),
    AtMost("D", 256),
    PositiveScale(),
)
CUDNN = (*COMMON, OneOf("window", None), OneOf("ahead", None), Causal("="))
FLASH_2 = (*COMMON, Causal("<="))
# The memory-efficient kernels take fp32 too, as three products of tf32, which is as exact as fp32.
_FLOATS = Dtypes("q", torch.float32, torch.float16, torch.bfloat16)
EFFICIENT = (_FLOATS, *COMMON[1:], OneOf("window", None), OneOf("ahead", None), Causal("="), OwnKeys())
LSE_ROWS = 32  # torch's memory-efficient kernels hold the lse of so many queries, or a multiple


def window_sizes(causal: bool, window: Limit, ahead: Limit) -> tuple[Limit, Limit]:
    """Keys seen to the left and to the right of a query's own place, which a window of ours counts; None: all of them."""
    return None if window is None else window - 1, 0 if causal else ahead


@once
def rows_first(x: torch.Tensor) -> torch.Tensor:
    """x [B H M D] as [B M H D] without gaps, copied once: torch's gradients would copy it in every call.

    In a model the output of attention has that order, and its gradient follows it.
    """
    return x.transpose(1, 2).contiguous()
