"""Triton kernels of this family; imported where they are launched, so that the family is known without Triton."""

import triton
import triton.language as tl


@triton.jit
def add_from_zero(out_ptr, x_ptr, y_ptr, numel, BLOCK: tl.constexpr):
    """An accumulator that starts at +0: -0 + -0 becomes +0."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    total += tl.load(x_ptr + offs, mask=offs < numel).to(tl.float32)
    total += tl.load(y_ptr + offs, mask=offs < numel).to(tl.float32)
    tl.store(out_ptr + offs, total.to(out_ptr.dtype.element_ty), mask=offs < numel)


@triton.jit
def gelu_by_symmetry(out_ptr, x_ptr, numel, BLOCK: tl.constexpr):
    """x + |x| * erf(|x|): the same number for either sign, but -0 + 0 is +0."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < numel).to(tl.float32)
    y = 0.5 * (x + tl.abs(x) * tl.erf(tl.abs(x) * 0.7071067811865476))
    tl.store(out_ptr + offs, y.to(out_ptr.dtype.element_ty), mask=offs < numel)


@triton.jit
def copy_plus_zero(out_ptr, x_ptr, numel, BLOCK: tl.constexpr):
    """A copy written as a sum with the zero of an absent bias."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < numel)
    tl.store(out_ptr + offs, x + 0.0, mask=offs < numel)


@triton.jit
def silu_by_division(out_ptr, x_ptr, numel, BLOCK: tl.constexpr):
    """x / (1 + exp(-x)) as it stands: -inf / inf is NaN, where silu is 0."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < numel).to(tl.float32)
    tl.store(out_ptr + offs, (x / (1 + tl.exp(-x))).to(out_ptr.dtype.element_ty), mask=offs < numel)


@triton.jit
def silu_cut_off(out_ptr, x_ptr, numel, BLOCK: tl.constexpr):
    """The exponent is kept within what the exponential can take: maxnum lets no NaN through."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.maximum(tl.load(x_ptr + offs, mask=offs < numel).to(tl.float32), -103.0)
    tl.store(out_ptr + offs, (x / (1 + tl.exp(-x))).to(out_ptr.dtype.element_ty), mask=offs < numel)
