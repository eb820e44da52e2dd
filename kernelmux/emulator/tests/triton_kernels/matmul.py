"""Matrix products: tiles of C in grouped order, persistent programs over tensor descriptors, one row, eight bits."""

import triton
import triton.language as tl


@triton.jit
def grouped_tile(tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """Row and column of the tile: GROUP rows of tiles one after the other, column by column."""
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = tile // (GROUP * tiles_n)
    rows = min(tiles_m - group * GROUP, GROUP)
    inside = tile % (GROUP * tiles_n)
    return group * GROUP + inside % rows, inside // rows


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm,
    PRECISION: tl.constexpr, IMPRECISE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP: tl.constexpr, SUMS: tl.constexpr = tl.float32,
):  # fmt: skip
    m, n = grouped_tile(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP)
    offs_m = (m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    offs_n = (n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak  # [BLOCK_M, BLOCK_K]
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn  # [BLOCK_K, BLOCK_N]
    sums = tl.zeros((BLOCK_M, BLOCK_N), SUMS)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_K, other=0.0)
        sums = tl.dot(a, b, sums, input_precision=PRECISION, max_num_imprecise_acc=IMPRECISE, out_dtype=SUMS)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    offs_m = m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = n * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    tl.store(c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :], sums.to(c_ptr.dtype.element_ty), mask=mask)


@triton.jit
def persistent_kernel(
    a, b, c, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    FLATTEN: tl.constexpr, SPECIALIZE: tl.constexpr,
):  # fmt: skip
    """A (M, K), B (N, K) and C are descriptors; every program takes one tile after the other."""
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(
        tl.program_id(0), tiles, tl.num_programs(0), flatten=FLATTEN, warp_specialize=SPECIALIZE
    ):  # fmt: skip
        m, n = grouped_tile(tile, M, N, BLOCK_M, BLOCK_N, GROUP)
        sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, K, BLOCK_K):
            sums = tl.dot(a.load([m * BLOCK_M, k]), b.load([n * BLOCK_N, k]).T, sums)
        c.store([m * BLOCK_M, n * BLOCK_N], sums.to(c.dtype))


@triton.jit
def persistent_device_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    FLATTEN: tl.constexpr, SPECIALIZE: tl.constexpr,
):  # fmt: skip
    a = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BLOCK_M, BLOCK_K])
    b = tl.make_tensor_descriptor(b_ptr, shape=[N, K], strides=[K, 1], block_shape=[BLOCK_N, BLOCK_K])
    c = tl.make_tensor_descriptor(c_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_M, BLOCK_N])
    persistent_kernel(a, b, c, M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, GROUP, FLATTEN, SPECIALIZE)


@triton.jit
def matvec_kernel(w_ptr, scale_ptr, x_ptr, y_ptr, M, K, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):
    """y = (scale * W) x with W in int8, one scale per row; x and y in 16 bits."""
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    sums = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    for start in range(0, K, BLOCK_K):
        offs_k = start + tl.arange(0, BLOCK_K)
        mask = (offs_m[:, None] < M) & (offs_k[None, :] < K)
        w = tl.load(w_ptr + offs_m[:, None] * K + offs_k[None, :], mask=mask, other=0, eviction_policy="evict_first")
        x = tl.load(x_ptr + offs_k, mask=offs_k < K, other=0.0, eviction_policy="evict_last")
        sums += w.to(tl.float32) * x.to(tl.float32)[None, :]
    y = tl.sum(sums, 1) * tl.load(scale_ptr + offs_m, mask=offs_m < M)
    tl.store(y_ptr + offs_m, y.to(y_ptr.dtype.element_ty), mask=offs_m < M)


@triton.jit
def scaled_kernel(
    a_ptr, a_scale_ptr, b_ptr, b_scale_ptr, c_ptr, A: tl.constexpr, B: tl.constexpr, A_PACK: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """C = (A * 2^a_scale) (B * 2^b_scale) in the formats A and B, one scale for 32 neighbours along K."""
    offs_m, offs_n, offs_k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    offs_a, offs_s = tl.arange(0, K // A_PACK), tl.arange(0, K // 32)
    a = tl.load(a_ptr + offs_m[:, None] * (K // A_PACK) + offs_a[None, :])
    b = tl.load(b_ptr + offs_k[:, None] * N + offs_n[None, :])
    a_scale = tl.load(a_scale_ptr + offs_m[:, None] * (K // 32) + offs_s[None, :])
    b_scale = tl.load(b_scale_ptr + offs_n[:, None] * (K // 32) + offs_s[None, :])
    c = tl.dot_scaled(a, a_scale, A, b, b_scale, B)
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], c)
