"""Launches of the kernels of `specialised`, and the rows of lse and sum(grad_out * y) that they read."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from triton.experimental.gluon import language as gl
from triton.language.extra import cuda

from kernelmux.backends.triton._launch.launch import Config, Launch, Map, cdiv, plan, processors
from kernelmux.backends.triton._launch.strides import contiguous
from kernelmux.backends.triton.attention._problem import POINTER, block_strides, section
from kernelmux.backends.triton.attention._specialised import pieces
from kernelmux.backends.triton.attention_backward._descriptors import pitch
from kernelmux.backends.triton.attention_backward._problem import (
    AttentionGradientProblem,
    load_lse,
    load_queries,
    row_terms,
)
from kernelmux.backends.triton.attention_backward._specialised import attention_gradient_specialised_kernel
from kernelmux.registry.spec.sliding_windows import best_shares, over_queries

T = torch.Tensor
Rule = Callable[[AttentionGradientProblem], dict[str, Config]]

OWN = 64  # rows of one warpgroup
_ADDED = 4e6  # bytes of shares that are written and read while a step of a walk takes place, 1.3 us
ROWS = 32  # of a program that sums grad_out * y
FLAT = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)


@triton.jit
def attention_rows_kernel(
    rows_ptr, counts_ptr, lse_ptr, g_ptr, y_ptr, H, M, PITCH, g_strides, y_strides, counts, D: tl.constexpr,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """lse of each query in units of log(2) and, PITCH further, sum(grad_out * y); behind the last query inf and 0.

    counts_ptr: so many counters that become 0.
    """
    cuda.gdc_launch_dependents()
    some = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    tl.store(counts_ptr + some, tl.zeros([ROWS], tl.int32), mask=some < counts)
    blocks = PITCH // ROWS
    line = (tl.program_id(0) // blocks).to(tl.int64)
    batch = line // H
    head = line % H
    offs_m = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    g = load_queries(g_ptr + batch * g_strides[0] + head * g_strides[1], offs_m, M, g_strides[2], D, COLUMNS)
    y = load_queries(y_ptr + batch * y_strides[0] + head * y_strides[1], offs_m, M, y_strides[2], D, COLUMNS)
    rows = rows_ptr + line * 2 * PITCH + offs_m
    tl.store(rows, load_lse(lse_ptr + line * M, offs_m, M))
    tl.store(rows + PITCH, row_terms(g, y))


@triton.jit
def attention_shares_kernel(
    grad_k_ptr, grad_v_ptr, parts_ptr, size, scale, SHARES: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Adds the shares of the gradients of keys and of values."""
    cuda.gdc_wait()
    which = tl.program_id(1)
    some = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    parts_ptr += which * size.to(tl.int64) * SHARES
    total = tl.zeros([BLOCK], tl.float32)
    for share in tl.static_range(SHARES):
        total += tl.load(parts_ptr + share * size.to(tl.int64) + some, mask=some < size, other=0.0)
    if which == 0:
        tl.store(grad_k_ptr + some, (total * scale).to(grad_k_ptr.dtype.element_ty), mask=some < size)
    else:
        tl.store(grad_v_ptr + some, total.to(grad_v_ptr.dtype.element_ty), mask=some < size)


def maps(p: AttentionGradientProblem, names: str, tile: int, width: int) -> tuple[Map, ...]:
    """One piece, so many columns wide, of outputs, a, b, c and d, by a letter each."""
    queries, keys = (p.B, p.H, p.M, p.D), (p.B, p.G, p.N, p.D)
    dtype = gl.float16 if p.dtype == torch.float16 else gl.bfloat16
    kinds = {
        "g": (queries, p.g_strides), "q": (queries, p.q_strides), "Q": (queries, contiguous(queries)),
        "k": (keys, p.k_strides), "v": (keys, p.v_strides), "K": (keys, contiguous(keys)),
    }  # fmt: skip

    def of(name: str, rows: int) -> Map:
        shape, strides = kinds[name]
        block = [1, 1, rows, width]
        return Map(shape, block_strides(shape, strides), block, gl.NVMMASharedLayout.get_default_for(block, dtype))

    return tuple(of(name, OWN if i < 4 else tile) for i, name in enumerate(names))


def gradient_plan(p: AttentionGradientProblem, kind: str, config: Config) -> Launch:
    """The launch for one gradient, or both of keys and values."""
    heads, rows, share = (p.B * p.H, p.M, p.H // p.G) if kind == "queries" else (p.B * p.G, p.N, 1)
    # Under a mask programs are of many lengths: those of as many heads as share L2 start longest first.
    walked = 4 * p.N * p.D if kind == "queries" else 4 * p.M * p.D * (p.H // p.G)
    of_lines = section(p.B * p.G, walked) * share if p.mask.causal else 1
    columns, rest = pieces(p.D)
    names, tile = "QQqgkv" if kind == "queries" else "KKkvqg", config["TILE"]
    all_maps = (
        POINTER,
        POINTER,
        rows_map(p, tile),
        *maps(p, names, tile, columns),
        *maps(p, names, tile, rest or columns),
    )
    constants = p.constants | {"COLUMNS": columns, "REST": rest, "launch_pdl": True}
    return Launch(
        attention_gradient_specialised_kernel, (cdiv(rows, 2 * OWN) * heads * config["SHARES"],), *p.sizes, pitch(p),
        heads, of_lines, maps=all_maps, KIND=kind, OWN=OWN, num_warps=4, **constants, **config,
    )  # fmt: skip


def rows_map(p: AttentionGradientProblem, tile: int) -> Map:
    """Of the rows of all heads, in blocks of a tile."""
    return Map((2 * p.B * p.H, pitch(p)), (pitch(p), 1), [1, tile], FLAT)


def rows_plan(p: AttentionGradientProblem, counts: int = 0) -> Launch:
    """The launch for the rows; it clears so many counters too."""
    return Launch(
        attention_rows_kernel, (cdiv(pitch(p), ROWS) * p.B * p.H,), p.H, p.M, pitch(p), p.g_strides[:3], p.y_strides[:3],
        counts, D=p.D, COLUMNS=p.columns, ROWS=ROWS, num_warps=4,
    )  # fmt: skip


def shares_of(p: AttentionGradientProblem, tile: int) -> int:
    """Programs that share the queries of a block of keys, where blocks are few or a long one would be left over.

    H200, us in 1, 3, 4, 6 and 8 shares: causal 1 x 12 / 3 x 1455, D = 96, 136.2, 70.5, 63.1, 65.4 and 68.1; 3 x 32 / 4 x
    784, D = 64, 123.7 in 3, 121.6 in 4, 130.9 in 6; no mask, 2 x 8 / 2 x 1000, D = 128, 85.8 in 2, 68.1 in 4.
    """
    walks = [p.H // p.G * tiles for tiles in over_queries(p.mask, p.M, p.N, 2 * OWN, tile)]
    counts = (1, 2, 3, 4, 6, 8)
    places = {n: processors(p.device) // n for n in counts}
    added = 2 * p.B * p.G * p.N * p.D * 8 / _ADDED  # bytes written and read, of both gradients
    return best_shares(walks, p.B * p.G, places, {n: 2.0 if n == 1 else 3.0 for n in counts}, added)


def _walks(tile: int, c: int, d: int, shares: int = 1) -> Config:
    return {"TILE": tile, "C_STAGES": c, "D_STAGES": d, "SHARES": shares}


def walks_rule(p: AttentionGradientProblem) -> dict[str, Config]:
    """The kernels of a call: whose gradient, the rows of a step, and the stages of what walks by.

    H200, causal, us: 4 x 16 x 2048, D = 96, in tiles of 128 keys for the queries 374, of 64 386, with three stages of both
    for keys and values 379, with two 387; 1 x 16 x 10000, D = 128, with three 2056, with two 2149; 2 x 16 x 4096, D = 256,
    in tiles of 32 1870, of 64 1888.
    """
    shares = shares_of(p, 64)
    if p.D <= 96:
        halved = not p.mask.causal and not p.mask.window and 1.1 * cdiv(p.N, 64) * 64 < cdiv(p.N, 128) * 128
        return {"queries": _walks(64 if halved else 128, 3, 2), "both": _walks(64, 3, 3, shares)}
    if p.D <= 128:
        return {"queries": _walks(64, 3, 2), "both": _walks(64, 3, 3, shares)}
    if sum(pieces(p.D)) <= 192:
        return {"queries": _walks(64, 3, 2), "keys": _walks(64, 3, 2, shares), "values": _walks(64, 3, 2, shares)}
    return {"queries": _walks(32, 3, 3), "keys": _walks(32, 3, 3, shares), "values": _walks(64, 2, 2, shares)}


@plan
def specialised_plans(p: AttentionGradientProblem, rule: Rule) -> tuple[Launch, dict[str, Launch], int]:
    """Launches for the rows, and by name for the gradients; how many shares those of keys and values have."""
    configs = rule(p)
    launches = {kind: gradient_plan(p, kind, config) for kind, config in configs.items()}
    return rows_plan(p), launches, max(config["SHARES"] for config in configs.values())


@plan
def shares_plan(p: AttentionGradientProblem, shares: int) -> Launch:
    """The launch that adds shares of the gradients of keys and values."""
    size = p.B * p.G * p.N * p.D
    return Launch(
        attention_shares_kernel,
        (cdiv(size, 1024), 2),
        size,
        p.scale,
        SHARES=shares,
        BLOCK=1024,
        num_warps=4,
        launch_pdl=True,
    )


def specialised(
    p: AttentionGradientProblem, grads: tuple[T, ...], grad_out: T, q: T, k: T, v: T, y: T, lse: T, rule: Rule = walks_rule
) -> None:  # fmt: skip
    """Writes grads: of q, k and v."""
    first, launches, shares = specialised_plans(p, rule)
    rows = lse.new_empty(p.B * p.H, 2, pitch(p))
    parts = lse.new_empty(2, shares, p.B * p.G, p.N, p.D) if shares > 1 else rows
    first(rows, rows, lse, grad_out, y)
    for kind, launch in launches.items():
        if kind == "queries":
            own = (grads[0], grads[0], q, grad_out, k, v)
        else:
            own = (grads[2] if kind == "values" else grads[1], grads[2], k, v, q, grad_out)
        launch(rows, parts, rows, *own, *own)
    if shares > 1:
        shares_plan(p, shares)(*grads[1:], parts)
