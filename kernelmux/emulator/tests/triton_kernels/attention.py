"""Attention: forward, backward with recomputation, one query against a long cache, and rotary embedding."""

import triton
import triton.language as tl


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, H, M, N, scale, HEADS_PER_GROUP: tl.constexpr, CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """q (B H M D), k and v (B H/HEADS_PER_GROUP N D), contiguous; key j is visible to query i if j <= i + N - M."""
    head = tl.program_id(1)
    group = (head // H) * (H // HEADS_PER_GROUP) + (head % H) // HEADS_PER_GROUP
    offs_m, offs_d = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, D)
    tile = (head * M + offs_m[:, None]) * D + offs_d[None, :]
    q = tl.load(q_ptr + tile, mask=offs_m[:, None] < M, other=0.0)
    top, total = tl.full((BLOCK_M,), -1e30, tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    sums = tl.zeros((BLOCK_M, D), tl.float32)
    end = tl.minimum(N, (tl.program_id(0) + 1) * BLOCK_M + N - M) if CAUSAL else N
    for start in range(0, end, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        keys = (group * N + offs_n[:, None]) * D + offs_d[None, :]
        k = tl.load(k_ptr + keys, mask=offs_n[:, None] < N, other=0.0)
        s = tl.dot(q, tl.trans(k)) * scale
        visible = offs_n[None, :] < N
        if CAUSAL:
            visible = visible & (offs_n[None, :] <= offs_m[:, None] + N - M)
        s = tl.where(visible, s, -1e30)
        new = tl.maximum(top, tl.max(s, 1))
        p, shrink = tl.exp(s - new[:, None]), tl.exp(top - new)
        total = total * shrink + tl.sum(p, 1)
        v = tl.load(v_ptr + keys, mask=offs_n[:, None] < N, other=0.0)
        sums = tl.dot(p.to(v.dtype), v, sums * shrink[:, None])
        top = new
    tl.store(o_ptr + tile, (sums / total[:, None]).to(o_ptr.dtype.element_ty), mask=offs_m[:, None] < M)
    tl.store(lse_ptr + head * M + offs_m, top + tl.log(total), mask=offs_m < M)


@triton.jit
def delta_kernel(o_ptr, grad_ptr, delta_ptr, M, D: tl.constexpr, BLOCK_M: tl.constexpr):
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    tile = offs_m[:, None] * D + tl.arange(0, D)[None, :]
    o = tl.load(o_ptr + tile, mask=offs_m[:, None] < M, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + tile, mask=offs_m[:, None] < M, other=0.0).to(tl.float32)
    tl.store(delta_ptr + offs_m, tl.sum(o * grad, 1), mask=offs_m < M)


@triton.jit
def rows_of(x_ptr, base, offs, S, D: tl.constexpr):
    return tl.load(x_ptr + (base + offs[:, None]) * D + tl.arange(0, D)[None, :], mask=offs[:, None] < S, other=0.0)


@triton.jit
def grad_kv_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, grad_k_ptr, grad_v_ptr, S, scale,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """One block of keys; the probabilities are computed again from lse, transposed: [BLOCK_N, BLOCK_M]."""
    base, offs_n = tl.program_id(1) * S, tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k, v = rows_of(k_ptr, base, offs_n, S, D), rows_of(v_ptr, base, offs_n, S, D)
    grad_k, grad_v = tl.zeros((BLOCK_N, D), tl.float32), tl.zeros((BLOCK_N, D), tl.float32)
    begin = (tl.program_id(0) * BLOCK_N // BLOCK_M) * BLOCK_M if CAUSAL else 0
    for start in range(begin, S, BLOCK_M):
        offs_m = start + tl.arange(0, BLOCK_M)
        q, grad = rows_of(q_ptr, base, offs_m, S, D), rows_of(grad_ptr, base, offs_m, S, D)
        lse = tl.load(lse_ptr + base + offs_m, mask=offs_m < S, other=0.0)
        delta = tl.load(delta_ptr + base + offs_m, mask=offs_m < S, other=0.0)
        p = tl.exp(tl.dot(k, tl.trans(q)) * scale - lse[None, :])
        visible = (offs_m[None, :] < S) & (offs_n[:, None] < S)
        if CAUSAL:
            visible = visible & (offs_n[:, None] <= offs_m[None, :])
        p = tl.where(visible, p, 0.0)
        grad_v = tl.dot(p.to(grad.dtype), grad, grad_v)
        ds = p * (tl.dot(v, tl.trans(grad)) - delta[None, :]) * scale
        grad_k = tl.dot(ds.to(q.dtype), q, grad_k)
    tile = (base + offs_n[:, None]) * D + tl.arange(0, D)[None, :]
    tl.store(grad_k_ptr + tile, grad_k.to(grad_k_ptr.dtype.element_ty), mask=offs_n[:, None] < S)
    tl.store(grad_v_ptr + tile, grad_v.to(grad_v_ptr.dtype.element_ty), mask=offs_n[:, None] < S)


@triton.jit
def grad_q_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, grad_q_ptr, S, scale,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    base, offs_m = tl.program_id(1) * S, tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    q, grad = rows_of(q_ptr, base, offs_m, S, D), rows_of(grad_ptr, base, offs_m, S, D)
    lse = tl.load(lse_ptr + base + offs_m, mask=offs_m < S, other=0.0)
    delta = tl.load(delta_ptr + base + offs_m, mask=offs_m < S, other=0.0)
    grad_q = tl.zeros((BLOCK_M, D), tl.float32)
    end = tl.minimum(S, (tl.program_id(0) + 1) * BLOCK_M) if CAUSAL else S
    for start in range(0, end, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        k, v = rows_of(k_ptr, base, offs_n, S, D), rows_of(v_ptr, base, offs_n, S, D)
        p = tl.exp(tl.dot(q, tl.trans(k)) * scale - lse[:, None])
        visible = (offs_m[:, None] < S) & (offs_n[None, :] < S)
        if CAUSAL:
            visible = visible & (offs_n[None, :] <= offs_m[:, None])
        ds = tl.where(visible, p, 0.0) * (tl.dot(grad, tl.trans(v)) - delta[:, None]) * scale
        grad_q = tl.dot(ds.to(k.dtype), k, grad_q)
    tile = (base + offs_m[:, None]) * D + tl.arange(0, D)[None, :]
    tl.store(grad_q_ptr + tile, grad_q.to(grad_q_ptr.dtype.element_ty), mask=offs_m[:, None] < S)


@triton.jit
def decode_kernel(
    q_ptr, k_ptr, v_ptr, part_ptr, top_ptr, total_ptr, N, scale,
    HEADS: tl.constexpr, PARTS: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """HEADS queries of one group against its part of the keys: sums of exp(s - top) v, top and total."""
    group, part = tl.program_id(0), tl.program_id(1)
    offs_h, offs_d = tl.arange(0, 16), tl.arange(0, D)
    q = tl.load(
        q_ptr + (group * HEADS + offs_h[:, None]) * D + offs_d[None, :], mask=offs_h[:, None] < HEADS, other=0.0
    )
    length = tl.cdiv(N, PARTS)
    top, total = tl.full((16,), float("-inf"), tl.float32), tl.zeros((16,), tl.float32)
    sums = tl.zeros((16, D), tl.float32)
    end = min(part * length + length, N)
    for start in range(part * length, end, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        keys = (group * N + offs_n[:, None]) * D + offs_d[None, :]
        k = tl.load(k_ptr + keys, mask=offs_n[:, None] < end, other=0.0, cache_modifier=".cg")
        s = tl.where(offs_n[None, :] < end, tl.dot(q, tl.trans(k)) * scale, float("-inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p, shrink = tl.exp(s - new[:, None]), tl.exp(top - new)
        total = total * shrink + tl.sum(p, 1)
        v = tl.load(v_ptr + keys, mask=offs_n[:, None] < end, other=0.0, cache_modifier=".cg")
        sums = tl.dot(p.to(v.dtype), v, sums * shrink[:, None])
        top = new
    rows = (group * PARTS + part) * HEADS + offs_h
    tl.store(part_ptr + rows[:, None] * D + offs_d[None, :], sums, mask=offs_h[:, None] < HEADS)
    tl.store(top_ptr + rows, top, mask=offs_h < HEADS)
    tl.store(total_ptr + rows, total, mask=offs_h < HEADS)


@triton.jit
def combine_kernel(
    part_ptr, top_ptr, total_ptr, o_ptr, HEADS: tl.constexpr, PARTS: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    group, head = tl.program_id(0), tl.program_id(1)
    offs_p, offs_d = tl.arange(0, PARTS), tl.arange(0, D)
    rows = (group * PARTS + offs_p) * HEADS + head
    top = tl.load(top_ptr + rows)
    weight = tl.exp(top - tl.max(top, 0))
    total = tl.sum(weight * tl.load(total_ptr + rows), 0)
    sums = tl.sum(weight[:, None] * tl.load(part_ptr + rows[:, None] * D + offs_d[None, :]), 0)
    tl.store(o_ptr + (group * HEADS + head) * D + offs_d, (sums / total).to(o_ptr.dtype.element_ty))


@triton.jit
def rope_kernel(x_ptr, out_ptr, H, D, base, INTERLEAVED: tl.constexpr, BLOCK: tl.constexpr):
    """Rotates the pairs of a head of x (S, H, D) by position * base^(-2 i / D)."""
    position, head, offs = tl.program_id(0), tl.program_id(1), tl.arange(0, BLOCK)
    mask = offs < D // 2
    angle = position * tl.exp2(-2.0 * offs / D * tl.log2(base))
    cos, sin = tl.cos(angle), tl.sin(angle)
    first = (position * H + head) * D + (2 * offs if INTERLEAVED else offs)
    second = first + (1 if INTERLEAVED else D // 2)
    a, b = (
        tl.load(x_ptr + first, mask=mask).to(tl.float32),
        tl.load(x_ptr + second, mask=mask).to(tl.float32),
    )
    tl.store(out_ptr + first, (a * cos - b * sin).to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(out_ptr + second, (a * sin + b * cos).to(out_ptr.dtype.element_ty), mask=mask)
