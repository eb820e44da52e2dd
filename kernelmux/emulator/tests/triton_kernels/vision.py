"""Images, channels first."""

import triton
import triton.language as tl


@triton.jit
def conv2d_kernel(
    x_ptr, w_ptr, y_ptr, C, H, W, K, P, Q, stride, padding, R: tl.constexpr, S: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """x (B C H W) * w (K C R S) -> y (B K P Q), as the product of (pixels, C R S) and (C R S, K)."""
    image = tl.program_id(2)
    pixels = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    channels = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    p, q = pixels // Q, pixels % Q
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, C * R * S, BLOCK_K):
        taps = start + tl.arange(0, BLOCK_K)
        c, r, s = taps // (R * S), taps // S % R, taps % S
        h = p[:, None] * stride + r[None, :] - padding  # [BLOCK_M, BLOCK_K]
        w = q[:, None] * stride + s[None, :] - padding
        inside = (h >= 0) & (h < H) & (w >= 0) & (w < W) & (taps[None, :] < C * R * S) & (pixels[:, None] < P * Q)
        a = tl.load(x_ptr + ((image * C + c[None, :]) * H + h) * W + w, mask=inside, other=0.0)
        mask = (taps[:, None] < C * R * S) & (channels[None, :] < K)
        b = tl.load(w_ptr + channels[None, :] * (C * R * S) + taps[:, None], mask=mask, other=0.0)
        sums = tl.dot(a, b, sums)
    mask = (pixels[:, None] < P * Q) & (channels[None, :] < K)
    out = y_ptr + (image * K + channels[None, :]) * (P * Q) + pixels[:, None]
    tl.store(out, sums.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def max_pool2d_kernel(
    x_ptr, y_ptr, index_ptr, H, W, P, Q, stride, padding, SIZE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The largest of SIZE x SIZE neighbours, and where in the plane it lies."""
    plane, pixels = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    p, q = pixels // Q, pixels % Q
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    index = tl.full((BLOCK,), -1, tl.int64)
    for r in tl.static_range(SIZE):
        for s in tl.static_range(SIZE):
            h, w = p * stride + r - padding, q * stride + s - padding
            inside = (h >= 0) & (h < H) & (w >= 0) & (w < W) & (pixels < P * Q)
            x = tl.load(x_ptr + (plane * H + h) * W + w, mask=inside, other=float("-inf")).to(tl.float32)
            better = x > best
            best, index = tl.where(better, x, best), tl.where(better, (h * W + w).to(tl.int64), index)
    tl.store(y_ptr + plane * P * Q + pixels, best.to(y_ptr.dtype.element_ty), mask=pixels < P * Q)
    tl.store(index_ptr + plane * P * Q + pixels, index, mask=pixels < P * Q)
