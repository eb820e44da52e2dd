"""Attention in fp32 on Hopper's tensor cores (in Gluon): one warp loads, one or two warpgroups each own 64 queries.

Queries, keys and values are first split into three numbers of bf16 each, which the copy engine brings side by side.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from kernelmux.backends.triton._launch.hopper import barriers, copy_in, ring
from kernelmux.backends.triton._launch.launch import Config, Launch, Map, cdiv, plan, processors
from kernelmux.backends.triton.attention._bf16x6_rows import attend_planes
from kernelmux.backends.triton.attention._online import Rule
from kernelmux.backends.triton.attention._planes import pieces, planes_map, planes_of, split_plan
from kernelmux.backends.triton.attention._problem import POINTER, AttentionProblem, apart, outputs, problem
from kernelmux.backends.triton.attention._specialised import QUERIES, _work
from kernelmux.backends.triton.attention._turns import section_of_turns
from kernelmux.registry.spec.sliding_windows import Limit

T = torch.Tensor

WARPGROUP_REGISTERS = gl.constexpr(240)  # of a thread of the second
LOADER_REGISTERS = gl.constexpr(24)


@gluon.jit
def bring_planes(
    desc, rest_desc, rows, rows_rest, full, empty, line, row, count, BLOCK: gl.constexpr, COLUMNS: gl.constexpr,
    REST: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Start to load the three planes of block `count` of a ring, once its slot is empty."""
    slot = count % STAGES
    mbarrier.wait(empty.index(slot), (count // STAGES + 1) & 1)
    mbarrier.expect(full.index(slot), 3 * BLOCK * (COLUMNS + REST) * 2)
    for plane in gl.static_range(3):
        copy_in(desc, [plane, line, row, 0], full.index(slot), rows.index(slot * 3 + plane))
        if REST:
            copy_in(rest_desc, [plane, line, row, COLUMNS], full.index(slot), rows_rest.index(slot * 3 + plane))


@gluon.jit
def _load(
    q_desc, k_desc, v_desc, q_rest_desc, k_rest_desc, v_rest_desc, q_rows, q_rest, k_ring, k_rest, v_ring, v_rest, q_full,
    q_empty, k_full, k_empty, v_full, v_empty, turns, H, SHARE, M, N, shift, window, LINES, SECTION, CAUSAL: gl.constexpr,
    WINDOW: gl.constexpr, GROUPS: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr,
    REST: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    count = 0  # blocks of keys so far
    for turn in range(turns):
        line, start_m, low, blocks = _work(
            turn, H, M, N, shift, window, LINES, SECTION, CAUSAL, WINDOW, GROUPS * ROWS, BLOCK_N
        )  # fmt: skip
        shared = line // SHARE  # heads that share keys follow one another
        for half in gl.static_range(GROUPS):
            bring_planes(
                q_desc, q_rest_desc, q_rows, q_rest, q_full, q_empty, line, start_m + half * ROWS, turn * GROUPS + half,
                ROWS, COLUMNS, REST, GROUPS,
            )  # fmt: skip
        for step in range(0, blocks - low):
            start_n = (blocks - 1 - step) * BLOCK_N
            bring_planes(
                k_desc, k_rest_desc, k_ring, k_rest, k_full, k_empty, shared, start_n, count, BLOCK_N, COLUMNS,
                REST, STAGES,
            )  # fmt: skip
            bring_planes(
                v_desc, v_rest_desc, v_ring, v_rest, v_full, v_empty, shared, start_n, count, BLOCK_N, COLUMNS,
                REST, STAGES,
            )  # fmt: skip
            count += 1


@gluon.jit
def _attend(
    lse_ptr, out_ptr, q_rows, q_rest, k_ring, k_rest, v_ring, v_rest, q_full, q_empty, k_full, k_empty, v_full, v_empty,
    turns, H, M, N, shift, window, scale, LINES, SECTION, HALF: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr,
    FLIP: gl.constexpr, D: gl.constexpr, GROUPS: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr,
    COLUMNS: gl.constexpr, REST: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    count = 0  # blocks of keys before this turn's
    for turn in range(turns):
        line, start_m, low, blocks = _work(
            turn, H, M, N, shift, window, LINES, SECTION, CAUSAL, WINDOW, GROUPS * ROWS, BLOCK_N
        )  # fmt: skip
        attend_planes(
            lse_ptr, out_ptr, q_rows, q_rest, k_ring, k_rest, v_ring, v_rest, q_full, q_empty, k_full, k_empty, v_full,
            v_empty, turn, count, line, start_m + HALF * ROWS, low, blocks, M, N, shift, window, scale, HALF, CAUSAL,
            WINDOW, FLIP, D, ROWS, BLOCK_N, COLUMNS, REST, STAGES,
        )  # fmt: skip
        count += blocks - low


@gluon.jit
def attention_bf16x6_kernel(
    lse_ptr, out_ptr, q_desc, k_desc, v_desc, q_rest_desc, k_rest_desc, v_rest_desc, H, SHARE, M, N, shift, window, scale,
    LINES, SECTION, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, FLIP: gl.constexpr, D: gl.constexpr, GROUPS: gl.constexpr,
    ROWS: gl.constexpr, BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    q_rows = ring(q_desc, 3 * GROUPS)
    k_ring = ring(k_desc, 3 * STAGES)
    v_ring = ring(v_desc, 3 * STAGES)
    q_rest = ring(q_rest_desc, 3 * GROUPS) if REST else q_rows
    k_rest = ring(k_rest_desc, 3 * STAGES) if REST else k_ring
    v_rest = ring(v_rest_desc, 3 * STAGES) if REST else v_ring
    q_full = barriers(GROUPS, 1)
    q_empty = barriers(GROUPS, 1)
    k_full = barriers(STAGES, 1)
    k_empty = barriers(STAGES, GROUPS)
    v_full = barriers(STAGES, 1)
    v_empty = barriers(STAGES, GROUPS)
    works = LINES * gl.cdiv(M, GROUPS * ROWS)
    programs = gl.num_programs(0)
    even = works // programs
    place = gl.where(even % 2 == 1, programs - 1 - gl.program_id(0), gl.program_id(0))
    turns = even + (place < works % programs).to(gl.int32)
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (_attend, (lse_ptr, out_ptr, q_rows, q_rest, k_ring, k_rest, v_ring, v_rest, q_full, q_empty, k_full,
                           k_empty, v_full, v_empty, turns, H, M, N, shift, window, scale, LINES, SECTION, 0, CAUSAL,
                           WINDOW, FLIP, D, GROUPS, ROWS, BLOCK_N, COLUMNS, REST, STAGES)),
                (_load, (q_desc, k_desc, v_desc, q_rest_desc, k_rest_desc, v_rest_desc, q_rows, q_rest, k_ring, k_rest,
                         v_ring, v_rest, q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, H, SHARE, M, N, shift,
                         window, LINES, SECTION, CAUSAL, WINDOW, GROUPS, ROWS, BLOCK_N, COLUMNS, REST, STAGES)),
            ],
            [1],
            [LOADER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_attend, (lse_ptr, out_ptr, q_rows, q_rest, k_ring, k_rest, v_ring, v_rest, q_full, q_empty, k_full,
                           k_empty, v_full, v_empty, turns, H, M, N, shift, window, scale, LINES, SECTION, 0, CAUSAL,
                           WINDOW, FLIP, D, GROUPS, ROWS, BLOCK_N, COLUMNS, REST, STAGES)),
                (_attend, (lse_ptr, out_ptr, q_rows, q_rest, k_ring, k_rest, v_ring, v_rest, q_full, q_empty, k_full,
                           k_empty, v_full, v_empty, turns, H, M, N, shift, window, scale, LINES, SECTION, 1, CAUSAL,
                           WINDOW, FLIP, D, GROUPS, ROWS, BLOCK_N, COLUMNS, REST, STAGES)),
                (_load, (q_desc, k_desc, v_desc, q_rest_desc, k_rest_desc, v_rest_desc, q_rows, q_rest, k_ring, k_rest,
                         v_ring, v_rest, q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, H, SHARE, M, N, shift,
                         window, LINES, SECTION, CAUSAL, WINDOW, GROUPS, ROWS, BLOCK_N, COLUMNS, REST, STAGES)),
            ],
            [4, 1],
            [WARPGROUP_REGISTERS, LOADER_REGISTERS],
        )  # fmt: skip


@plan
def _plan(p: AttentionProblem, rule: Rule) -> Launch:
    config: Config = dict(rule(p))
    columns, rest = pieces(p.D)
    rows, lines = config["GROUPS"] * QUERIES, p.B * p.H
    of_lines = section_of_turns(p, rows, config["BLOCK_N"], 1)

    def maps(width: int) -> tuple[Map, ...]:
        keys = planes_map(p.B * p.G, p.N, p.D, config["BLOCK_N"], width)
        return planes_map(lines, p.M, p.D, QUERIES, width), keys, keys

    programs = min(cdiv(p.M, rows) * lines, processors(p.device))
    return Launch(
        attention_bf16x6_kernel, (programs,), *p.sizes, lines, of_lines,
        maps=(POINTER, POINTER, *maps(columns), *maps(rest or columns)), ROWS=QUERIES, COLUMNS=columns, REST=rest,
        num_warps=4, **p.constants, **config,
    )  # fmt: skip


def bf16x6(
    q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit, rule: Rule
) -> tuple[T, T]:  # fmt: skip
    """Attention of fp32 with 64 or 128 queries per program."""
    out, lse, some = outputs(q, k)
    if some:
        q, k, v = apart(q), apart(k), apart(v)
        p = problem(q, k, v, causal, scale, window, precision, ahead)
        planes = planes_of(q, k, v)
        split_plan(p.device, p.shapes[1:], p.strides[1:])(*planes, q, k, v)
        _plan(p, rule)(lse, out, *planes, *planes)
    return out, lse
