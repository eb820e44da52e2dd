"""Division by a number that a launch knows, as a product with its reciprocal: a division takes a thread 25 instructions."""

from __future__ import annotations

import triton
import triton.language as tl

from kernelmux.backends.triton._launch.launch import cdiv


@triton.jit
def quotient(x, by, factor, shift):
    """x // by, by the factor and the shift that `reciprocal` gives of `by`. Exact for every int32 x of 0 or more; int64 x
    are divided. `by` may differ from launch to launch, so it costs no compilation."""
    if x.dtype == tl.int64:
        return x // by
    return tl.where(by == 1, x, tl.umulhi(x, tl.zeros_like(x) + factor) >> shift)


def reciprocal(by: int) -> tuple[int, int]:
    """Factor and shift of `quotient`, of 1 <= by < 2^31: the factor is 2^(32 + shift) / by, rounded up.

    For by > 1, 2^shift < by <= 2^(shift + 1), so the factor is 2^31 or more and below 2^32: it goes in as the int32 of its
    bits. Rounded up it is too large by less than 1, and a product of x < 2^31 by less than 2^31 / 2^(32 + shift) <= 1 / by,
    which leads to no other whole number. For by = 1 it does not count.
    """
    shift = max(0, (by - 1).bit_length() - 1)
    return cdiv(2 ** (32 + shift), by) - 2**32, shift
