"""Products whose lines the copy engine cannot read or write, as it does from multiples of 16 bytes on only: operands are
copied to lines that begin at multiples of 128 bytes, where they are not such already; threads store rows of the result.

H200, bf16: 4097^3 takes 2064 us element by element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kernelmux.backends.triton._launch.launch import Ints, cdiv, plan
from kernelmux.backends.triton.matmul._blocked import Rule, blocked
from kernelmux.backends.triton.matmul._epilogue import EpilogueTensors
from kernelmux.backends.triton.matmul._lines import copying, line_of
from kernelmux.backends.triton.matmul._problem import MatmulShapes, problem
from kernelmux.backends.triton.matmul._specialised import specialised
from kernelmux.registry.conditions import Aligned
from kernelmux.registry.util.batch_strides import merged

# Microseconds: that tiles read by TMA are ahead by for each operation, of those that are read by elements in both
# operands or in one, and of those by 8 bytes and more; of a copy, and one of a batch; of a byte. Rows that threads store,
# as TMA cannot, are taken for half a copy. H200, us, by elements and by copies: 4097^3 2099 and 289, 1024 x 2002 by 2002 x
# 2002 76.5 and 31.9, 256 x 1002 by 1002 x 1002 35.2 and 17.5, 20 products of 1326 x 232 by 232 x 109 24.0 and 20.3.
BY_ELEMENTS, BY_SOME, BY_VECTORS = (1 / rate - 1 / 700e6 for rate in (40e6, 85e6, 450e6))
LAUNCH, OF_BATCH, BYTE = 3.0, 8.0, 1 / 4e6
# Rows of a up to which rows of b are read where they lie: reading them is all that takes time. H100, us, so and by copies:
# 17 x 4096 by 4096 x 50257 214 and 437, 28 x 8852 by 8852 x 17878 219 and 351, 16 x 4096 by 4096 x 11007 68 and 108; 48 x
# 6001 by 6001 x 12001 208 and 166, 64 x 3001 by 3001 x 9001 105 and 72.
READ_ONCE = 32


@dataclass(frozen=True)
class Misaligned:
    """Lines of an operand, or of the result, that do not begin at multiples of 16 bytes."""

    left: str
    right: str

    @property
    def text(self) -> str:
        """The condition in a few words."""
        return f"{self.left}, {self.right} or rows of the result not aligned to 16 bytes"

    def check(self, call: Any) -> str | None:
        """None, or that all are aligned."""
        if call.axes["N"] % 8 or any(Aligned(name).check(call) for name in (self.left, self.right)):
            return None
        return f"{self.left}, {self.right} and rows of the result are aligned to 16 bytes"


def wide(x: torch.Tensor) -> torch.Tensor:
    """Memory like x's, [... lines, n], whose lines begin at multiples of 128 bytes."""
    return x.new_empty((*x.shape[:-1], line_of(x.shape[-1])))


def readable(x: torch.Tensor) -> bool:
    """Whether the lines of matrices begin at multiples of 16 bytes."""
    bits = x.stride(-2) if x.stride(-1) == 1 else x.stride(-1)
    for stride in x.stride()[:-2]:
        bits |= stride
    return not (x.data_ptr() | bits * x.element_size()) & 15


def _distance(shape: Ints, strides: Ints) -> int | None:
    """From one line of matrices to the next, if that is the same everywhere."""
    axes = merged(zip(shape[:-1], strides[:-1], strict=True))
    return None if len(axes) > 1 else axes[0][1] if axes else strides[-2]


def with_lines(x: torch.Tensor) -> torch.Tensor:
    """A copy of matrices, one of whose axes is contiguous, that the copy engine can read."""
    if x.stride(-1) != 1:
        return with_lines(x.mT).mT
    y, length = wide(x), x.shape[-1]
    line = _distance(x.shape, x.stride())
    if line is None:
        y[..., :length].copy_(x)
    else:
        copying(x.get_device(), y.numel() // y.shape[-1], y.shape[-1], line, y.shape[-1], length)(y, x)
    return y[..., :length]


@plan
def _repaid(p: MatmulShapes, copies: tuple[bool, bool]) -> bool:
    """Whether what tiles read by the copy engine save is more than the copies of a and of b take."""
    if min(p.M, p.N, p.K) < 16 or (p.M <= READ_ONCE and copies[1] and p.b_strides[1] == 1):
        return False
    copied = [n for n, there in zip((p.M * p.K, p.K * p.N), copies, strict=True) if there]
    whole = 2 * p.products * cdiv(p.M, 64) * cdiv(p.N, 64) * 64**2 * p.K
    saved = whole * (BY_VECTORS if p.vectors else BY_ELEMENTS if len(copied) > 1 else BY_SOME)
    stored = LAUNCH + 2 * p.products * p.M * p.N * BYTE if p.N % 8 else 0.0
    return saved >= stored + sum((OF_BATCH if p.batch else LAUNCH) + 4 * p.products * n * BYTE for n in copied)


def padded(a: torch.Tensor, b: torch.Tensor, rule: Rule, otherwise: Rule, epilogue: EpilogueTensors) -> torch.Tensor:
    """a @ b as by `specialised` if it repays copies, and otherwise as by `blocked`."""
    there = readable(a), readable(b)
    p = problem(a, b, "ieee", epilogue.ending)
    if not _repaid(p, (not there[0], not there[1])):
        return blocked(a, b, "ieee", otherwise, epilogue)
    a, b = a if there[0] else with_lines(a), b if there[1] else with_lines(b)
    return specialised(a, b, rule, epilogue, follows=not all(there))
