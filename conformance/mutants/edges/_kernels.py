"""Triton kernels of this family; imported where they are launched, so that the family is known without Triton."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


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
