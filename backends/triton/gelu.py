"""gelu: x * P(X <= x) for a standard normal X, exactly (erf) or by its tanh approximation.

Both forms avoid 1 + erf and 1 + tanh, which cancel for negative x, and cost little enough to keep up with the memory:
on 2^26 bf16 elements there is time for about 27 instructions per element.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernelmux.backends.triton._elementwise import elementwise
from kernelmux.registry.backend import Implementation


@triton.jit
def _normal_tail(a):
    """P(X > a) for a >= 0 as 2^p(a); p is a weighted minimax fit on [0, 13], absolute error of the result below 6e-8.

    The leading coefficient is negative, so larger arguments, infinity included, give 0; the relative error reaches 2 %
    where the result is below 1e-20.
    """
    p = a * -3.7718797e-09 + 1.83032569e-07
    p = p * a - 3.53070777e-06
    p = p * a + 3.35824116e-05
    p = p * a - 1.39685013e-04
    p = p * a - 2.64738861e-04
    p = p * a + 7.23303575e-03
    p = p * a - 5.26087321e-02
    p = p * a - 4.59173709e-01
    p = p * a - 1.1511091
    p = p * a - 0.99999994
    return tl.exp2(p)


@triton.jit
def _gelu_erf(x):
    tail = _normal_tail(tl.abs(x))
    return x * tl.where(x < 0, tail, 1 - tail)


@triton.jit
def _gelu_tanh(x):
    """x * (1 + tanh u) / 2 = x / (1 + exp(-2u)), u = sqrt(2/pi) * (x + 0.044715 x^3)."""
    # -2 * sqrt(2/pi) * log2(e), and that times 0.044715
    exponent = x * (x * x * -0.10294324 - 2.3022082)
    return x / (1 + tl.exp2(exponent))


def gelu(x: torch.Tensor, approximate: str) -> torch.Tensor:
    return elementwise(_gelu_tanh if approximate == "tanh" else _gelu_erf, x)


VARIANTS = {
    "blocked": Implementation(
        fn=gelu, idea="one block per program; the normal tail as 2 to a polynomial", arithmetic="fp32"
    ),
}
