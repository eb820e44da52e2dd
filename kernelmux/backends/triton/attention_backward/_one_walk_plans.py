"""Launches of the kernel of `one_walk`, and what makes grad_q of its sums."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from triton.experimental.gluon import language as gl
from triton.language.extra import cuda

from kernelmux.backends.triton._launch.launch import Config, Launch, Map, cdiv, plan
from kernelmux.backends.triton._launch.strides import contiguous
from kernelmux.backends.triton.attention._online import key_range
from kernelmux.backends.triton.attention._problem import POINTER
from kernelmux.backends.triton.attention._specialised import pieces
from kernelmux.backends.triton.attention_backward._descriptors import pitch
from kernelmux.backends.triton.attention_backward._one_walk import attention_gradient_one_walk_kernel
from kernelmux.backends.triton.attention_backward._problem import AttentionGradientProblem
from kernelmux.backends.triton.attention_backward._specialised_plans import OWN, maps, rows_map, rows_plan

T = torch.Tensor
Rule = Callable[[AttentionGradientProblem], Config]

TILE = 64  # queries of a step


@triton.jit
def attention_finish_kernel(
    grad_q_ptr, sums_ptr, M, N, shift, window, scale, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, D: tl.constexpr,
    PITCH: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """grad_q of a tile of queries from its sums, whose rows are PITCH numbers long; no sum is there if no key is seen."""
    cuda.gdc_wait()
    tiles = tl.cdiv(M, TILE)
    place = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(0) % tiles
    columns = tl.arange(0, COLUMNS)[None, :]
    rows = tl.arange(0, TILE)[:, None]
    there = (columns < D) & (tile * TILE + rows < M)
    begin, _, _, end = key_range(tile * TILE, M, N, shift, window, CAUSAL, WINDOW, TILE, BLOCK_N)
    sums = tl.load(sums_ptr + (place * TILE + rows) * PITCH + columns, mask=there & (end > begin), other=0.0)
    at = (place // tiles * M + tile * TILE + rows) * D + columns
    tl.store(grad_q_ptr + at, (sums * scale).to(grad_q_ptr.dtype.element_ty), mask=there)


def one_walk_rule(p: AttentionGradientProblem) -> Config:
    """Stages of what walks by, and how many heads run together."""
    longest = p.mask.causal and p.H > p.G
    return {"Q_STAGES": 3, "G_STAGES": 2 if p.D > 96 else 3, "TURNS": True, "SECTION": 4 if longest else 8}


@plan
def one_walk_plans(p: AttentionGradientProblem, rule: Rule) -> tuple[Launch, Launch, Launch, tuple[int, int, int]]:
    """Launches for the rows, the walk and the end of grad_q, and the shape of the sums."""
    tiles, config = cdiv(p.M, TILE), rule(p)
    columns, rest = pieces(p.D)
    whole, places, lines = columns <= 64 and not rest, p.B * p.H * tiles, p.B * p.G
    size = places, TILE, columns + rest

    def of_sums(width: int) -> Map:
        block = [1, TILE, width]
        return Map(size, contiguous(size), block, gl.NVMMASharedLayout.get_default_for(block, gl.float32))

    halves = (columns, rest) if rest else (columns, columns) if whole else (columns // 2, columns // 2)
    all_maps = (
        POINTER, rows_map(p, TILE), *map(of_sums, halves),
        *maps(p, "KKgqkv", TILE, columns), *maps(p, "KKgqkv", TILE, rest or columns),
    )  # fmt: skip
    walk = Launch(
        attention_gradient_one_walk_kernel, (cdiv(p.N, 2 * OWN) * lines,), *p.sizes, pitch(p), lines,
        min(lines, config["SECTION"]), 2 * places, maps=all_maps, REST=rest, WHOLE=whole, OWN=OWN, TILE=TILE, num_warps=4,
        launch_pdl=True, **(p.constants | {"COLUMNS": columns} | {k: v for k, v in config.items() if k != "SECTION"}),
    )  # fmt: skip
    _, _, M, N, shift, window, scale, _ = p.sizes
    finish = Launch(
        attention_finish_kernel, (places,), M, N, shift, window, scale, CAUSAL=p.mask.causal, WINDOW=p.mask.window > 0,
        D=p.D, PITCH=columns + rest, COLUMNS=p.columns, TILE=TILE, BLOCK_N=2 * OWN, num_warps=4, launch_pdl=True,
    )  # fmt: skip
    return rows_plan(p, 2 * places + 1), walk, finish, size


def one_walk(
    p: AttentionGradientProblem, grads: tuple[T, ...], grad_out: T, q: T, k: T, v: T, y: T, lse: T,
    rule: Rule = one_walk_rule,
) -> None:  # fmt: skip
    """Writes grads: of q, k and v."""
    rows = lse.new_empty(p.B * p.H, 2, pitch(p))
    first, walk, finish, size = one_walk_plans(p, rule)
    sums, done = lse.new_empty(size), lse.new_empty(2 * size[0] + 1, dtype=torch.int32)
    own = grads[1], grads[2], grad_out, q, k, v
    first(rows, done, lse, grad_out, y)
    walk(done, rows, sums, sums, *own, *own)
    finish(grads[0], sums)
