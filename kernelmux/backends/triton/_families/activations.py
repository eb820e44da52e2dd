"""SiLU and GELU with their derivatives, for fp32 arguments: x * p(x) for a distribution function p, and p(x) + x * p'(x).

Nothing cancels for negative x: what is small is computed as such, and not as 1 minus the rest. A `*_share` returns p and
p'; NaN passes through p. All cost little enough to keep up with the memory: on 2^26 bf16 elements there is time for
about 27 instructions per element.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Beyond it each p is 0 or 1 and each p' is 0; an infinity would make 0 * inf of the product with them.
FAR = tl.constexpr(1000.0)
LOG2_E = tl.constexpr(1.44269504)


@triton.jit
def derivative(x, share, slope):
    """Of x * p(x), from p and p'."""
    return share + tl.minimum(tl.maximum(x, -FAR), FAR) * slope


@triton.jit
def _logistic_share(w):
    """1 / (1 + exp(-w)) for w in units of ln 2, and its derivative by w * ln 2."""
    t = tl.exp2(-tl.abs(w))
    r = 1 / (1 + t)
    small = t * r
    return tl.where(w < 0, small, r), small * r


@triton.jit
def silu_value(x):
    return tl.maximum(x, -FAR) / (1 + tl.exp2(-LOG2_E * x))


@triton.jit
def silu_share(x):
    return _logistic_share(LOG2_E * x)


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
def _normal_distribution(x):
    tail = _normal_tail(tl.abs(x))
    return tl.where(x < 0, tail, 1 - tail)


@triton.jit
def gelu_erf(x):
    return x * _normal_distribution(x)


@triton.jit
def gelu_erf_share(x):
    """The density is exp(-x^2 / 2) / sqrt(2 pi)."""
    return _normal_distribution(x), 0.39894228 * tl.exp2(-0.72134752 * (x * x))


@triton.jit
def _tanh_exponent(x):
    """2u * log2(e) of (1 + tanh u) / 2 = 1 / (1 + exp(-2u)), u = sqrt(2/pi) * (x + 0.044715 x^3)."""
    return x * (x * x * 0.10294324 + 2.3022082)


@triton.jit
def gelu_tanh(x):
    return x / (1 + tl.exp2(-_tanh_exponent(x)))


@triton.jit
def gelu_tanh_share(x):
    share, slope = _logistic_share(_tanh_exponent(x))
    z = tl.minimum(tl.maximum(x, -FAR), FAR)
    return share, slope * (z * z * 0.21406445 + 1.5957691)  # times the derivative of 2u
