"""One program per row."""

import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x_ptr, out_ptr, stride_x, N, scale, LOG: tl.constexpr, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < N, other=float("-inf")).to(tl.float32) * scale
    shifted = x - tl.max(x, 0)
    total = tl.sum(tl.exp(shifted), 0)
    out = shifted - tl.log(total) if LOG else tl.exp(shifted) / total
    tl.store(out_ptr + row * N + offs, out.to(out_ptr.dtype.element_ty), mask=offs < N)


@triton.jit
def rms_norm_kernel(x_ptr, residual_ptr, w_ptr, out_ptr, sum_ptr, N, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):
    """With ADD: x + residual is written to sum and normalised."""
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    mask = offs < N
    x = tl.load(x_ptr + row * N + offs, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(residual_ptr + row * N + offs, mask=mask, other=0.0).to(tl.float32)
        tl.store(sum_ptr + row * N + offs, x.to(sum_ptr.dtype.element_ty), mask=mask)
    w = tl.load(w_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    out = x * tl.rsqrt(tl.sum(x * x, 0) / N + eps) * w
    tl.store(out_ptr + row * N + offs, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def layer_norm_kernel(x_ptr, w_ptr, b_ptr, out_ptr, mean_ptr, rstd_ptr, N, eps, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    mask = offs < N
    x = tl.load(x_ptr + row * N + offs, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, 0) / N
    centred = tl.where(mask, x - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, 0) / N + eps)
    w, b = tl.load(w_ptr + offs, mask=mask), tl.load(b_ptr + offs, mask=mask)
    tl.store(out_ptr + row * N + offs, (centred * rstd * w + b).to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)


@triton.jit
def layer_norm_backward_kernel(
    grad_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, grad_x_ptr, part_w_ptr, part_b_ptr, lock_ptr, N,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows add their share of grad_w and grad_b to one of GROUPS buffers, one row at a time, under a lock."""
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    mask = offs < N
    x = tl.load(x_ptr + row * N + offs, mask=mask, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + row * N + offs, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.load(rstd_ptr + row)
    normal = tl.where(mask, (x - tl.load(mean_ptr + row)) * rstd, 0.0)
    wg = w * grad
    grad_x = (wg - (normal * (tl.sum(normal * wg, 0) / N) + tl.sum(wg, 0) / N)) * rstd
    tl.store(grad_x_ptr + row * N + offs, grad_x, mask=mask)
    group = row % GROUPS
    lock, count = lock_ptr + group, lock_ptr + GROUPS + group
    mine = group * N + offs
    part_w, part_b = grad * normal, grad
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(count) == 0:
        tl.atomic_xchg(count, 1)
    else:
        part_w += tl.load(part_w_ptr + mine, mask=mask)
        part_b += tl.load(part_b_ptr + mine, mask=mask)
    tl.store(part_w_ptr + mine, part_w, mask=mask)
    tl.store(part_b_ptr + mine, part_b, mask=mask)
    tl.debug_barrier()  # all threads have written before one gives the lock back
    tl.atomic_xchg(lock, 0)


@triton.jit
def column_sums_kernel(part_ptr, out_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, M, BLOCK_M):
        offs_m = start + tl.arange(0, BLOCK_M)
        mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
        sums += tl.load(part_ptr + offs_m[:, None] * N + offs_n[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + offs_n, tl.sum(sums, 0), mask=offs_n < N)


@triton.jit
def cross_entropy_kernel(x_ptr, target_ptr, loss_ptr, lse_ptr, N, ignored, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top, total = float("-inf"), 0.0
    for start in range(0, N, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * N + offs, mask=offs < N, other=float("-inf")).to(tl.float32)
        new = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(x - new), 0)
        top = new
    lse = top + tl.log(total)
    target = tl.load(target_ptr + row)
    tl.store(lse_ptr + row, lse)
    if target == ignored:
        tl.store(loss_ptr + row, 0.0)
    else:
        tl.store(loss_ptr + row, lse - tl.load(x_ptr + row * N + target).to(tl.float32))


@triton.jit
def cross_entropy_backward_kernel(grad_ptr, x_ptr, target_ptr, lse_ptr, grad_x_ptr, N, ignored, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    target, grad = tl.load(target_ptr + row), tl.load(grad_ptr + row)
    x = tl.load(x_ptr + row * N + offs, mask=offs < N, other=float("-inf")).to(tl.float32)
    probability = tl.exp(x - tl.load(lse_ptr + row))
    out = tl.where(target == ignored, 0.0, grad * (probability - tl.where(offs == target, 1.0, 0.0)))
    tl.store(grad_x_ptr + row * N + offs, out.to(grad_x_ptr.dtype.element_ty), mask=offs < N)


@triton.jit
def quantize_rows_kernel(x_ptr, out_ptr, scale_ptr, N, TOP: tl.constexpr, BLOCK: tl.constexpr):
    """out * scale is x as nearly as TOP steps allow; scale is the largest magnitude of the row over TOP."""
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + offs, mask=offs < N, other=0.0).to(tl.float32)
    scale = tl.max(tl.abs(x), 0) / TOP
    scaled = x / scale
    if out_ptr.dtype.element_ty == tl.int8:
        scaled = tl.extra.cuda.libdevice.rint(scaled)
    tl.store(out_ptr + row * N + offs, scaled.to(out_ptr.dtype.element_ty), mask=offs < N)
    tl.store(scale_ptr + row, scale)
