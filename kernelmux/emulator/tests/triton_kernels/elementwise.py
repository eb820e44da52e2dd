"""One element in, one element out."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask) + tl.load(y_ptr + offs, mask=mask), mask=mask)


@triton.jit
def gelu_erf(x):
    return 0.5 * x * (1 + tl.math.erf(x * 0.7071067811865476))


@triton.jit
def gelu_tanh(x):
    return 0.5 * x * (1 + libdevice.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def square(x):
    return x * x


@triton.jit
def cubic(x):
    return ((0.5 * x - 1.25) * x + 2.0) * x - 0.75


@triton.jit
def map_kernel(x_ptr, out_ptr, n, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask).to(tl.float32)
    tl.store(out_ptr + offs, FUNCTION(x).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def gated_kernel(x_ptr, out_ptr, stride_x, N, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    """out = f(gate) * up, where a row of x is [gate, up]."""
    row, offs = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < N
    gate = tl.load(x_ptr + row * stride_x + offs, mask=mask).to(tl.float32)
    up = tl.load(x_ptr + row * stride_x + N + offs, mask=mask).to(tl.float32)
    tl.store(out_ptr + row * N + offs, (FUNCTION(gate) * up).to(out_ptr.dtype.element_ty), mask=mask)
