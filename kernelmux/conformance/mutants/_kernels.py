"""Triton kernels of mutants; imported where they are launched, so that mutants are known without Triton."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def row_maximum(out_ptr, x_ptr, scale, N, BLOCK: tl.constexpr):
    """max(scale * x) of each row, into a buffer of whatever dtype it was given."""
    cols = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64)
    z = tl.load(x_ptr + row * N + cols, mask=cols < N, other=0.0).to(tl.float32) * scale
    top = tl.max(tl.where(cols < N, z, -float("inf")), 0)
    tl.store(out_ptr + row, top.to(out_ptr.dtype.element_ty))


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


@triton.jit
def _row(x_ptr, N, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    return tl.load(x_ptr + tl.program_id(0).to(tl.int64) * N + cols, mask=cols < N, other=0.0).to(tl.float32)


@triton.jit
def _write(out_ptr, y, N, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.program_id(0).to(tl.int64) * N + cols, y.to(out_ptr.dtype.element_ty), mask=cols < N)


@triton.jit
def softmax_backward(out_ptr, y_ptr, grad_ptr, scale, N, BLOCK: tl.constexpr, WEIGHED: tl.constexpr):
    """WEIGHED: the gradients are summed with their weights."""
    y, grad = _row(y_ptr, N, BLOCK), _row(grad_ptr, N, BLOCK)
    total = tl.sum(libdevice.mul_rn(grad, y) if WEIGHED else grad, 0)
    _write(out_ptr, scale * y * (grad - total), N, BLOCK)


@triton.jit
def log_softmax(out_ptr, x_ptr, N, BLOCK: tl.constexpr, PADDED: tl.constexpr):
    """PADDED: the padding takes part in the sum, as zeros beside the maximum; else the logarithm of the weights."""
    x = _row(x_ptr, N, BLOCK)
    inside = tl.arange(0, BLOCK) < N
    distance = x - tl.max(tl.where(inside, x, -float("inf")), 0)
    if PADDED:
        y = distance - tl.log(tl.sum(tl.exp(distance), 0))
    else:
        weight = tl.where(inside, tl.exp(distance), 0.0)
        y = tl.log(weight / tl.sum(weight, 0))
    _write(out_ptr, y, N, BLOCK)


@triton.jit
def log_softmax_backward(out_ptr, y_ptr, grad_ptr, N, BLOCK: tl.constexpr):
    """y stands in for exp(y)."""
    y, grad = _row(y_ptr, N, BLOCK), _row(grad_ptr, N, BLOCK)
    _write(out_ptr, grad - y * tl.sum(grad, 0), N, BLOCK)


@triton.jit
def add_rms_norm(out_ptr, total_ptr, weight_ptr, eps, N, BLOCK: tl.constexpr):
    """The mean is taken over the block."""
    total = _row(total_ptr, N, BLOCK)
    weight = tl.load(weight_ptr + tl.arange(0, BLOCK), mask=tl.arange(0, BLOCK) < N, other=0.0).to(tl.float32)
    _write(out_ptr, total * tl.rsqrt(tl.sum(libdevice.mul_rn(total, total), 0) / BLOCK + eps) * weight, N, BLOCK)


@triton.jit
def rms_norm_backward(out_ptr, x_ptr, grad_ptr, weight_ptr, eps, N, BLOCK: tl.constexpr):
    """The gradient of the rows of rms_norm; sound."""
    x, grad = _row(x_ptr, N, BLOCK), _row(grad_ptr, N, BLOCK)
    weight = tl.load(weight_ptr + tl.arange(0, BLOCK), mask=tl.arange(0, BLOCK) < N, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(libdevice.mul_rn(x, x), 0) / N + eps)
    mean = tl.sum(libdevice.mul_rn(grad * weight, x), 0) / N
    _write(out_ptr, rstd * (grad * weight - x * rstd * rstd * mean), N, BLOCK)


@triton.jit
def layer_norm(out_ptr, x_ptr, weight_ptr, eps, N, BLOCK: tl.constexpr):
    """The padding takes part in the variance: zeros, which are as far from the mean as that is from 0."""
    x = _row(x_ptr, N, BLOCK)
    weight = tl.load(weight_ptr + tl.arange(0, BLOCK), mask=tl.arange(0, BLOCK) < N, other=0.0).to(tl.float32)
    distance = x - tl.sum(x, 0) / N
    _write(out_ptr, distance * tl.rsqrt(tl.sum(libdevice.mul_rn(distance, distance), 0) / N + eps) * weight, N, BLOCK)


@triton.jit
def scale_after_maximum(out_ptr, x_ptr, scale, N, BLOCK: tl.constexpr):
    """The maximum of x stands in for that of scale * x, which is the minimum for a negative scale."""
    cols = tl.arange(0, BLOCK)
    offs = tl.program_id(0).to(tl.int64) * N + cols
    x = tl.load(x_ptr + offs, mask=cols < N, other=-float("inf")).to(tl.float32)
    p = tl.where(cols < N, tl.exp((x - tl.max(x, 0)) * scale), 0.0)
    tl.store(out_ptr + offs, (p / tl.sum(p, 0)).to(out_ptr.dtype.element_ty), mask=cols < N)


@triton.jit
def scaled_padding(out_ptr, x_ptr, scale, N, BLOCK: tl.constexpr):
    """The padding is -inf before it is scaled: a negative scale makes it the maximum, and zero makes it NaN."""
    cols = tl.arange(0, BLOCK)
    offs = tl.program_id(0).to(tl.int64) * N + cols
    z = tl.load(x_ptr + offs, mask=cols < N, other=-float("inf")).to(tl.float32) * scale
    p = tl.exp(z - tl.max(z, 0))
    tl.store(out_ptr + offs, (p / tl.sum(p, 0)).to(out_ptr.dtype.element_ty), mask=cols < N)


@triton.jit
def polynomial(out_ptr, x_ptr, a, b, c, d, numel, BLOCK: tl.constexpr):
    """Horner's rule; what is wrong is in what the launch passes."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < numel).to(tl.float32)
    y = ((a * x + b) * x + c) * x + d
    tl.store(out_ptr + offs, y.to(out_ptr.dtype.element_ty), mask=offs < numel)


@triton.jit
def add_parts(total, parts, n, blocks, ATOMIC: tl.constexpr, BLOCK: tl.constexpr):
    part = tl.program_id(0) % blocks
    i = tl.program_id(0) // blocks * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(parts + part.to(tl.int64) * n + i, mask=i < n, other=0.0)
    if ATOMIC:
        tl.atomic_add(total + i, x, mask=i < n)
    else:
        tl.store(total + i, tl.load(total + i, mask=i < n) + x, mask=i < n)


@triton.jit
def gelu_rows(y, x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(1).to(tl.int64) * n + i
    v = tl.load(x + at, mask=i < n, other=0.0).to(tl.float32)
    tl.store(y + at, 0.5 * v * libdevice.erfc(-v * 0.7071067811865476), mask=i < n)


@triton.jit
def gelu(y, x, n, BLOCK: tl.constexpr, TANH: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0).to(tl.float32)
    if TANH:
        inner = 0.7978845608028654 * (v + 0.044715 * v * v * v)
        r = 0.5 * v * (1 + libdevice.tanh(inner))
    else:
        r = 0.5 * v * libdevice.erfc(-v * 0.7071067811865476)
    tl.store(y + i, r, mask=i < n)


@triton.jit
def sum_by_atomics(x, total, n, blocks, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    row, i = program // blocks, program % blocks * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row.to(tl.int64) * n + i, mask=i < n, other=0.0).to(tl.float32)
    tl.atomic_add(total + row, tl.sum(v))


@triton.jit
def rms_norm_rows(y, x, weight, n, eps, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    row = tl.program_id(0)
    if WIDE:
        row = row.to(tl.int64)
    start = row * n
    squares = tl.zeros([BLOCK], tl.float64)
    for first in range(0, n, BLOCK):
        i = first + tl.arange(0, BLOCK)
        v = tl.load(x + start + i, mask=i < n, other=0.0).to(tl.float32)
        squares += v.to(tl.float64) * v.to(tl.float64)
    factor = 1 / tl.sqrt(tl.sum(squares) / n + eps)
    for first in range(0, n, BLOCK):
        i = first + tl.arange(0, BLOCK)
        v = tl.load(x + start + i, mask=i < n, other=0.0).to(tl.float32)
        tl.store(y + start + i, v * factor * tl.load(weight + i, mask=i < n, other=0.0), mask=i < n)


@triton.jit
def rms_norm_backward_weight(total, g, x, factor, n, BLOCK: tl.constexpr):
    """Each program takes a row."""
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    for start in range(0, n, BLOCK):
        mask = start + i < n
        at = row * n + start + i
        product = tl.load(g + at, mask=mask, other=0.0).to(tl.float32) * tl.load(x + at, mask=mask, other=0.0)
        tl.atomic_add(total + start + i, product * tl.load(factor + row), mask=mask)


@triton.jit
def swiglu_backward_gradients(grad_a, grad_b, grad_out, a, b, columns, pitch, n, BLOCK: tl.constexpr):
    """Rows of `columns` elements that lie `pitch` apart in a, and in b as well."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = i // columns * pitch + i % columns
    g = tl.load(grad_out + i, mask=i < n).to(tl.float32)
    u = tl.load(a + place, mask=i < n).to(tl.float32)
    v = tl.load(b + place, mask=i < n).to(tl.float32)
    t = tl.exp(-tl.abs(u))
    s = tl.where(u < 0, t, 1.0) / (1 + t)
    u = tl.minimum(tl.maximum(u, -1000.0), 1000.0)
    tl.store(grad_a + i, g * v * (s + u * t / ((1 + t) * (1 + t))), mask=i < n)
    tl.store(grad_b + i, g * (tl.maximum(u, -1000.0) * s), mask=i < n)


@triton.jit
def softmax_beyond_its_row(out_ptr, x_ptr, scale, N, BLOCK: tl.constexpr):
    """The sum has one term of the padding: its exponent is that of the smallest finite number."""
    cols = tl.arange(0, BLOCK)
    z = libdevice.mul_rn(_row(x_ptr, N, BLOCK), scale + 0.0 * tl.zeros([BLOCK], tl.float32))
    top = tl.max(tl.where(cols < N, z, -float("inf")), 0)
    e = tl.where(cols <= N, tl.exp(tl.where(cols < N, z, top) - top), 0.0)
    _write(out_ptr, e / tl.sum(e, 0), N, BLOCK)
