"""Launches of the kernel of `one_walk`, and what makes grad_q of its sums."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.experimental.gluon import language as gl
from triton.language.extra import cuda

from kernelmux.backends.triton._launch.launch import Config, Launch, Map, cdiv, plan
from kernelmux.backends.triton._launch.strides import contiguous
from kernelmux.backends.triton.attention._online import key_range
from kernelmux.backends.triton.attention._problem import POINTER
from kernelmux.backends.triton.attention_backward._descriptors import pitch
from kernelmux.backends.triton.attention_backward._one_walk import attention_gradient_one_walk_kernel
from kernelmux.backends.triton.attention_backward._problem import AttentionGradientProblem
from kernelmux.backends.triton.attention_backward._specialised_plans import OWN, maps, rows_map, rows_plan

T = torch.Tensor


def tile_of(p: AttentionGradientProblem) -> int:
    """Queries of a step: of a part of grad_q each of two warpgroups has 64 rows and 64 columns."""
    return 64 if p.columns > 64 else 128


@triton.jit
def attention_finish_kernel(
    grad_q_ptr, sums_ptr, M, N, shift, window, scale, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, D: tl.constexpr,
    COLUMNS: tl.constexpr, TILE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """grad_q of a tile of queries from its sums, which are not there if no key is seen."""
    cuda.gdc_wait()
    tiles = tl.cdiv(M, TILE)
    place = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(0) % tiles
    columns = tl.arange(0, COLUMNS)[None, :]
    rows = tl.arange(0, TILE)[:, None]
    there = (columns < D) & (tile * TILE + rows < M)
    begin, _, _, end = key_range(tile * TILE, M, N, shift, window, CAUSAL, WINDOW, TILE, BLOCK_N)
    sums = tl.load(sums_ptr + (place * TILE + rows) * COLUMNS + columns, mask=there & (end > begin), other=0.0)
    at = (place // tiles * M + tile * TILE + rows) * D + columns
    tl.store(grad_q_ptr + at, (sums * scale).to(grad_q_ptr.dtype.element_ty), mask=there)


def one_walk_rule(p: AttentionGradientProblem) -> Config:
    """Stages of what walks by.

    H200, D = 128, us: 1 x 16 x 10000 causal 1816, with three stages of queries 1855; 2 x 16 x 4096 1225, with three 1206.
    """
    return {"Q_STAGES": 2 if p.mask.causal else 3, "G_STAGES": 2}


def sections(p: AttentionGradientProblem) -> int:
    """Heads of keys whose programs run together.

    H200, D = 128, causal, us: 1 x 16 x 10000 1855 in 8, 1923 in 4, 1857 in 16; 4 x 32/8 x 4096 2690 in 8, 2666 in 4, 2918
    in 2. Not causal 2 x 16 x 4096 1206 in 8, 1231 in 4.
    """
    return min(p.B * p.G, 4 if p.mask.causal and p.H > p.G else 8)


@plan
def one_walk_plans(p: AttentionGradientProblem) -> tuple[Launch, Launch, Launch, tuple[int, int, int]]:
    """Launches for the rows, the walk and the end of grad_q, and the shape of the sums."""
    tile = tile_of(p)
    places = p.B * p.H * cdiv(p.M, tile)
    size, block = (places, tile, p.columns), [1, 64, 64]
    sums = Map(size, contiguous(size), block, gl.NVMMASharedLayout.get_default_for(block, gl.float32))
    grad_k, grad_v, k, v, q, grad_out = maps(p, "KKkvqg", tile, p.columns)
    walk = Launch(
        attention_gradient_one_walk_kernel, (cdiv(p.N, 2 * OWN) * p.B * p.G,), *p.sizes, pitch(p), p.B * p.G, sections(p),
        2 * places, maps=(POINTER, rows_map(p, tile), sums, grad_k, grad_v, grad_out, q, k, v), OWN=OWN, TILE=tile,
        num_warps=4, launch_pdl=True, **p.constants, **one_walk_rule(p),
    )  # fmt: skip
    _, _, M, N, shift, window, scale, _ = p.sizes
    finish = Launch(
        attention_finish_kernel, (places,), M, N, shift, window, scale, CAUSAL=p.mask.causal, WINDOW=p.mask.window > 0,
        D=p.D, COLUMNS=p.columns, TILE=tile, BLOCK_N=2 * OWN, num_warps=4, launch_pdl=True,
    )  # fmt: skip
    return rows_plan(p, 2 * places + 1), walk, finish, size


def one_walk(
    p: AttentionGradientProblem, grads: tuple[T, ...], grad_out: T, q: T, k: T, v: T, y: T, lse: T
) -> None:  # fmt: skip
    """Writes grads: of q, k and v."""
    rows = lse.new_empty(p.B * p.H, 2, pitch(p))
    first, walk, finish, size = one_walk_plans(p)
    sums, done = lse.new_empty(size), lse.new_empty(2 * size[0] + 1, dtype=torch.int32)
    first(rows, done, lse, grad_out, y)
    walk(done, rows, sums, grads[1], grads[2], grad_out, q, k, v)
    finish(grads[0], sums)
