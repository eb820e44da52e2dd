"""A Triton matrix product with a mask, a stride or a step that is wrong."""

from pathlib import Path

import torch
import triton
import triton.language as tl

from kernelmux.emulator.validation.defects.model import Defect, TritonLaunch

FAMILY = "Triton: matrix product"
SOURCE = Path(__file__)
BLOCK, K = 32, 40


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, DEFECT: tl.constexpr,
):  # fmt: skip
    """c [M, N] = a [M, K] b [K, N], a tile per program."""
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    if DEFECT == "program_axes_swapped":
        offs_m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
        offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        offs_k = k + tl.arange(0, BLOCK_K)
        limit = K
        if DEFECT == "tail_of_k_wrong":
            limit = K + k
        mask_a = (offs_m[:, None] < M) & (offs_k[None, :] < limit)
        if DEFECT == "no_mask_for_rows":
            mask_a = offs_k[None, :] < K
        if DEFECT == "no_mask_for_k":
            mask_a = offs_m[:, None] < M
        a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :]
        a = tl.load(a_ptrs, mask=mask_a, other=0.0)  # reported: no_mask_for_rows, no_mask_for_k, tail_of_k_wrong
        b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
        if DEFECT == "strides_of_b_swapped":
            b_ptrs = b_ptr + offs_k[:, None] * stride_bn + offs_n[None, :] * stride_bk
        if DEFECT == "b_does_not_advance":
            b_ptrs -= k * stride_bk
        mask_b = (offs_k[:, None] < K) & (offs_n[None, :] < N)
        b = tl.load(b_ptrs, mask=mask_b, other=0.0)
        if DEFECT == "sum_overwritten":
            total = tl.dot(a, b)
        else:
            total = tl.dot(a, b, total)
    mask_c = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    if DEFECT == "store_mask_for_rows_only":
        mask_c = (offs_m[:, None] < M) & (offs_n[None, :] < N + BLOCK_N)
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], total, mask=mask_c)  # reported: store_mask_for_rows_only


def matmul() -> TritonLaunch:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator).half() for shape in ((48, K), (K, 30)))
    c = torch.full((48, 30), torch.nan)
    arguments = {"a_ptr": a, "b_ptr": b, "c_ptr": c, "M": 48, "N": 30, "K": K}
    arguments |= {"stride_am": K, "stride_bk": 30, "stride_bn": 1, "BLOCK_M": BLOCK, "BLOCK_N": BLOCK, "BLOCK_K": 32}
    return TritonLaunch(SOURCE, matmul_kernel, (2, 1), arguments, {"c_ptr": a.float() @ b.float()}, tolerance=1e-4)


OUT = ("out of bounds",)
NEIGHBOUR = "Memory behind the array is read without an error; rarely the address is illegal."

DEFECTS = (
    Defect("no_mask_for_rows", "The rows behind the last one of a are loaded.", NEIGHBOUR, matmul, OUT),
    Defect("no_mask_for_k", "The tail of K is loaded without a mask.", NEIGHBOUR, matmul, OUT),
    Defect(
        "tail_of_k_wrong",
        "The limit of K moves on with the tiles, so its tail is never masked.",
        NEIGHBOUR,
        matmul,
        OUT,
    ),
    Defect("strides_of_b_swapped", "The strides of b are mixed up.", "A wrong product, or an illegal address.", matmul),
    Defect("b_does_not_advance", "The pointers of b stay at the first tile of K.", "A wrong product.", matmul),
    Defect("sum_overwritten", "Each step of K replaces the sum.", "The product of the last tile only.", matmul),
    Defect("program_axes_swapped", "The two axes of the grid are mixed up.", "Some tiles are never computed.", matmul),
    Defect(
        "store_mask_for_rows_only",
        "The columns behind the last one of c are stored.",
        "They overwrite the next row, or memory behind the array.",
        matmul,
        ("race", "out of bounds"),
    ),
)
