"""Launches of the kernels of `specialised`, and the rows of lse and sum(grad_out * y) that they read."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.experimental.gluon import language as gl
from triton.language.extra import cuda

from kernelmux.backends.triton._launch.launch import Config, Launch, Map, cdiv, overlaps, plan
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

T = torch.Tensor

OWN = 64  # rows of one warpgroup
ROWS = 32  # of a program that sums grad_out * y
FLAT = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)


@triton.jit
def attention_rows_kernel(
    rows_ptr, lse_ptr, g_ptr, y_ptr, H, M, PITCH, g_strides, y_strides, D: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, LEADS: tl.constexpr,
):  # fmt: skip
    """lse of each query in units of log(2) and, PITCH further, sum(grad_out * y); behind the last query inf and 0."""
    if LEADS:
        cuda.gdc_launch_dependents()
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


def _maps(p: AttentionGradientProblem, names: str, tile: int, width: int) -> tuple[Map, ...]:
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
    maps: tuple[Any, ...] = (
        POINTER, Map((2 * p.B * p.H, pitch(p)), (pitch(p), 1), [1, tile], FLAT),
        *_maps(p, names, tile, columns), *_maps(p, names, tile, rest or columns),
    )  # fmt: skip
    constants = p.constants | {
        "COLUMNS": columns,
        "REST": rest,
        "OVERLAPS": True,
        "TURNS": False,
        "BEHIND": True,
        "launch_pdl": True,
    }
    return Launch(
        attention_gradient_specialised_kernel, (cdiv(rows, 2 * OWN) * heads,), *p.sizes, pitch(p), heads, of_lines,
        maps=maps, KIND=kind, OWN=OWN, num_warps=4, **(constants | config),
    )  # fmt: skip


def rows_plan(p: AttentionGradientProblem) -> Launch:
    """The launch for the rows."""
    return Launch(
        attention_rows_kernel, (cdiv(pitch(p), ROWS) * p.B * p.H,), p.H, p.M, pitch(p), p.g_strides[:3], p.y_strides[:3],
        D=p.D, COLUMNS=p.columns, ROWS=ROWS, LEADS=overlaps(p.device), num_warps=4,
    )  # fmt: skip


def walks_rule(p: AttentionGradientProblem) -> dict[str, Config]:
    """The kernels of a call: whose gradient, the rows of a step, and the stages of what walks by."""
    if p.D <= 128:
        return {
            "queries": {"TILE": 64, "C_STAGES": 3, "D_STAGES": 2},
            "both": {"TILE": 64, "C_STAGES": 2, "D_STAGES": 2},
        }
    if sum(pieces(p.D)) <= 192:
        one = {"TILE": 64, "C_STAGES": 3, "D_STAGES": 2}
        return {"queries": one, "keys": one, "values": one}
    one = {"TILE": 32, "C_STAGES": 3, "D_STAGES": 3}
    return {"queries": one, "keys": one, "values": {"TILE": 64, "C_STAGES": 2, "D_STAGES": 2}}


@plan
def specialised_plans(p: AttentionGradientProblem, rule: Any) -> tuple[Launch, dict[str, Launch]]:
    """Launches for the rows, and by name for the gradients."""
    return rows_plan(p), {kind: gradient_plan(p, kind, config) for kind, config in rule(p).items()}


def specialised(
    p: AttentionGradientProblem, grads: tuple[T, ...], grad_out: T, q: T, k: T, v: T, y: T, lse: T, rule: Any = walks_rule
) -> None:  # fmt: skip
    """Writes grads: of q, k and v."""
    rows = lse.new_empty(p.B * p.H, 2, pitch(p))
    first, launches = specialised_plans(p, rule)
    first(rows, lse, grad_out, y)
    for kind, launch in launches.items():
        if kind == "queries":
            own = (grads[0], grads[0], q, grad_out, k, v)
        else:
            own = (grads[2] if kind == "values" else grads[1], grads[2], k, v, q, grad_out)
        launch(rows, rows, *own, *own)
