"""Attention with the work divided among warps (in Gluon): one loads, one or two warpgroups each own 64 queries.

While the tensor cores compute the scores of a block, the weights of the block before are applied to its values and the
next maximum and exponentials are taken: 64 x 128 exponentials cost as many cycles as the two products (Shah et al.,
FlashAttention-3, 2024). Blocks are walked from the last key to the first, so the masked ones come first. Programs stay:
the queries and keys of the next work come while the output of one is stored.
"""

from __future__ import annotations

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from kernelmux.backends.triton._launch.hopper import barriers, copy_in, copy_out_wait, ring
from kernelmux.backends.triton._launch.launch import Config, Launch, Map, cdiv, plan, processors, shared_bytes
from kernelmux.backends.triton.attention._online import Rule, key_range, located
from kernelmux.backends.triton.attention._problem import (
    POINTER,
    AttentionProblem,
    block_strides,
    outputs,
    problem,
)
from kernelmux.backends.triton.attention._specialised_rows import attend_rows
from kernelmux.backends.triton.attention._turns import section_of_turns
from kernelmux.registry.spec.sliding_windows import Limit

T = torch.Tensor

# Queries of one warpgroup: the rows of one wgmma instruction.
QUERIES = 64
GROUP = 128  # its threads
REGISTERS = 65536  # of a multiprocessor
WARPGROUP_REGISTERS = gl.constexpr(240)  # of a thread of the second
LOADER_REGISTERS = gl.constexpr(24)
BARRIERS = 1024  # bytes, of barriers and for tiles to begin at multiples of their swizzle


@gluon.jit
def _work(turn, H, M, N, shift, window, LINES, SECTION, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, ROWS: gl.constexpr,
          BLOCK_N: gl.constexpr):  # fmt: skip
    """The work of a program's turn: its line, first query, and range of blocks of keys.

    Every other turn goes through the programs backwards: who had the longest work of one has the shortest of the next.
    """
    programs = gl.num_programs(0)
    program = gl.program_id(0)
    blocks_m = gl.cdiv(M, ROWS)
    place = gl.where(turn % 2 == 1, programs - 1 - program, program)
    # The last queries see the most keys, so they come first.
    line, block = located(turn * programs + place, LINES, blocks_m, SECTION)
    start_m = (blocks_m - 1 - block) * ROWS
    begin, _, _, end = key_range(start_m, M, N, shift, window, CAUSAL, WINDOW, ROWS, BLOCK_N)
    blocks = gl.maximum(gl.cdiv(end, BLOCK_N), 1)  # queries that see no key walk a block that is masked
    return line, start_m, gl.minimum(begin // BLOCK_N, blocks - 1), blocks


@gluon.jit
def _bring(
    desc, rest_desc, rows, rows_rest, full, empty, batch, head, row, count, BLOCK: gl.constexpr, COLUMNS: gl.constexpr,
    REST: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Start to load block `count` of a ring, once its slot is empty."""
    slot = count % STAGES
    mbarrier.wait(empty.index(slot), (count // STAGES + 1) & 1)
    mbarrier.expect(full.index(slot), BLOCK * (COLUMNS + REST) * 2)
    copy_in(desc, [batch, head, row, 0], full.index(slot), rows.index(slot))
    if REST:
        copy_in(rest_desc, [batch, head, row, COLUMNS], full.index(slot), rows_rest.index(slot))


@gluon.jit
def _load(
    q_desc, k_desc, v_desc, q_rest, k_rest, v_rest, q_rows, k_ring, v_ring, q_rows_rest, k_ring_rest, v_ring_rest,
    q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, H, SHARE, M, N, shift, window, LINES, SECTION,
    CAUSAL: gl.constexpr, WINDOW: gl.constexpr, GROUPS: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr,
    COLUMNS: gl.constexpr, REST: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    count = 0  # blocks of keys so far
    for turn in range(turns):
        line, start_m, low, blocks = _work(
            turn, H, M, N, shift, window, LINES, SECTION, CAUSAL, WINDOW, GROUPS * ROWS, BLOCK_N
        )  # fmt: skip
        batch = line // H
        head = line % H
        group = head // SHARE
        for step in range(0, blocks - low):
            start_n = (blocks - 1 - step) * BLOCK_N
            _bring(
                k_desc, k_rest, k_ring, k_ring_rest, k_full, k_empty, batch, group, start_n, count, BLOCK_N, COLUMNS,
                REST, STAGES,
            )  # fmt: skip
            if step == 0:
                for half in gl.static_range(GROUPS):
                    _bring(
                        q_desc, q_rest, q_rows, q_rows_rest, q_full, q_empty, batch, head, start_m + half * ROWS,
                        turn * GROUPS + half, ROWS, COLUMNS, REST, GROUPS,
                    )  # fmt: skip
            _bring(
                v_desc, v_rest, v_ring, v_ring_rest, v_full, v_empty, batch, group, start_n, count, BLOCK_N, COLUMNS,
                REST, STAGES,
            )  # fmt: skip
            count += 1


@gluon.jit
def _attend(
    lse_ptr, out_desc, out_rest, q_rows, k_ring, v_ring, q_rows_rest, k_ring_rest, v_ring_rest, o_rows, o_rows_rest,
    q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, H, M, N, shift, window, scale, LINES, SECTION,
    HALF: gl.constexpr, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, FLIP: gl.constexpr, GROUPS: gl.constexpr,
    ROWS: gl.constexpr, BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr, DEPTH: gl.constexpr,
    STAGES: gl.constexpr, APART: gl.constexpr,
):  # fmt: skip
    count = 0  # blocks of keys before this turn's
    for turn in range(turns):
        line, start_m, low, blocks = _work(
            turn, H, M, N, shift, window, LINES, SECTION, CAUSAL, WINDOW, GROUPS * ROWS, BLOCK_N
        )  # fmt: skip
        first_row = start_m + HALF * ROWS
        attend_rows(
            lse_ptr, out_desc, out_rest, q_rows, k_ring, v_ring, q_rows_rest, k_ring_rest, v_ring_rest, o_rows,
            o_rows_rest, q_full, q_empty, k_full, k_empty, v_full, v_empty, turn, count, line, first_row, low,
            blocks, H, M, N, shift, window, scale, HALF, CAUSAL, WINDOW, FLIP, ROWS, BLOCK_N, COLUMNS, REST,
            DEPTH, STAGES, APART,
        )  # fmt: skip
        count += blocks - low
    copy_out_wait(0)


@gluon.jit
def attention_specialised_kernel(
    lse_ptr, out_desc, q_desc, k_desc, v_desc, out_rest, q_rest, k_rest, v_rest, H, SHARE, M, N, shift, window, scale,
    LINES, SECTION, CAUSAL: gl.constexpr, WINDOW: gl.constexpr, FLIP: gl.constexpr, D: gl.constexpr,
    GROUPS: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, COLUMNS: gl.constexpr, REST: gl.constexpr,
    DEPTH: gl.constexpr, STAGES: gl.constexpr, APART: gl.constexpr,
):  # fmt: skip
    q_rows = ring(q_desc, GROUPS)
    k_ring = ring(k_desc, STAGES)
    v_ring = ring(v_desc, STAGES)
    q_rows_rest = ring(q_rest, GROUPS) if REST else q_rows
    k_ring_rest = ring(k_rest, STAGES) if REST else k_ring
    v_ring_rest = ring(v_rest, STAGES) if REST else v_ring
    o_rows = ring(q_desc, GROUPS) if APART else q_rows
    o_rows_rest = ring(q_rest, GROUPS) if APART and REST else q_rows_rest
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
                (_attend, (lse_ptr, out_desc, out_rest, q_rows, k_ring, v_ring, q_rows_rest, k_ring_rest, v_ring_rest,
                           o_rows, o_rows_rest, q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, H, M, N, shift,
                           window, scale, LINES, SECTION, 0, CAUSAL, WINDOW, FLIP, GROUPS, ROWS, BLOCK_N, COLUMNS, REST,
                           DEPTH, STAGES, APART)),
                (_load, (q_desc, k_desc, v_desc, q_rest, k_rest, v_rest, q_rows, k_ring, v_ring, q_rows_rest, k_ring_rest,
                         v_ring_rest, q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, H, SHARE, M, N, shift,
                         window, LINES, SECTION, CAUSAL, WINDOW, GROUPS, ROWS, BLOCK_N, COLUMNS, REST, STAGES)),
            ],
            [1],
            [LOADER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_attend, (lse_ptr, out_desc, out_rest, q_rows, k_ring, v_ring, q_rows_rest, k_ring_rest, v_ring_rest,
                           o_rows, o_rows_rest, q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, H, M, N, shift,
                           window, scale, LINES, SECTION, 0, CAUSAL, WINDOW, FLIP, GROUPS, ROWS, BLOCK_N, COLUMNS, REST,
                           DEPTH, STAGES, APART)),
                (_attend, (lse_ptr, out_desc, out_rest, q_rows, k_ring, v_ring, q_rows_rest, k_ring_rest, v_ring_rest,
                           o_rows, o_rows_rest, q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, H, M, N, shift,
                           window, scale, LINES, SECTION, 1, CAUSAL, WINDOW, FLIP, GROUPS, ROWS, BLOCK_N, COLUMNS, REST,
                           DEPTH, STAGES, APART)),
                (_load, (q_desc, k_desc, v_desc, q_rest, k_rest, v_rest, q_rows, k_ring, v_ring, q_rows_rest, k_ring_rest,
                         v_ring_rest, q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, H, SHARE, M, N, shift,
                         window, LINES, SECTION, CAUSAL, WINDOW, GROUPS, ROWS, BLOCK_N, COLUMNS, REST, STAGES)),
            ],
            [4, 1],
            [WARPGROUP_REGISTERS, LOADER_REGISTERS],
        )  # fmt: skip


def pieces(D: int) -> tuple[int, int]:
    """Widths of the two pieces that rows are cut into, of a power of two each; 0 where one is no wider than both."""
    whole = max(16, int(triton.next_power_of_2(D)))
    rest = max(16, int(triton.next_power_of_2(max(1, D - whole // 2))))
    return (whole // 2, rest) if whole > 16 and whole // 2 + rest < whole else (whole, 0)


def held_bytes(groups: int, keys: int, stages: int, width: int) -> int:
    """Shared memory of queries and of the rings of keys and values."""
    return 2 * (groups * QUERIES + 2 * stages * keys) * width + BARRIERS


@plan
def _plan(p: AttentionProblem, rule: Rule) -> Launch:
    config = rule(p)
    columns, rest = pieces(p.D)
    rows, block_n, together = config["GROUPS"] * QUERIES, config["BLOCK_N"], config.pop("TOGETHER")
    threads = GROUP * (config["GROUPS"] + 1)  # the warp that loads has a group to itself
    limit: Config = {"maxnreg": REGISTERS // (threads * together) // 8 * 8} if together > 1 else {}
    # A place of its own for the output lets the next queries come while the last values are multiplied.
    held = held_bytes(config["GROUPS"], block_n, config["STAGES"], columns + rest)
    apart = held + 2 * rows * (columns + rest) <= shared_bytes(p.device) // together
    # Works are of many lengths under a mask. H200, causal, 4 x 32 x 4096, D = 128, us: 901, with all heads in one section
    # 1086, where programs did not stay 1006.
    of_lines = section_of_turns(p, rows, block_n, together)
    dtype = gl.float16 if p.dtype == torch.float16 else gl.bfloat16

    def maps(width: int) -> tuple[Map, ...]:
        queries, keys = [1, 1, QUERIES, width], [1, 1, config["BLOCK_N"], width]
        kinds = zip(p.shapes, p.strides, (queries, queries, keys, keys), strict=True)
        return tuple(
            Map(shape, block_strides(shape, strides), block, gl.NVMMASharedLayout.get_default_for(block, dtype))
            for shape, strides, block in kinds
        )

    lines = p.B * p.H
    programs = min(cdiv(p.M, rows) * lines, processors(p.device) * together)
    return Launch(
        attention_specialised_kernel, (programs,), *p.sizes, lines, of_lines,
        maps=(POINTER, *maps(columns), *maps(rest or columns)), ROWS=QUERIES, COLUMNS=columns, REST=rest,
        DEPTH=columns if rest else cdiv(p.D, 16) * 16, APART=apart, num_warps=4, **p.constants, **limit, **config,
    )  # fmt: skip


def joined(q: T, k: T, causal: bool, window: Limit, ahead: Limit) -> T:
    """The heads that share keys as one with all their queries: fewer blocks of queries are part empty.

    Where no mask tells queries apart, and the queries of the next head follow those of the one before.
    """
    B, H, M, D = q.shape
    G = k.shape[1]
    if causal or window is not None or ahead is not None or H == G or q.stride(1) != M * q.stride(2):
        return q
    return q.view(B, G, H // G * M, D)


def specialised(
    q: T, k: T, v: T, causal: bool, scale: float, window: Limit, precision: str, ahead: Limit, rule: Rule
) -> tuple[T, T]:  # fmt: skip
    """Attention with 64 or 128 queries per program, its warps specialised."""
    rows = joined(q, k, causal, window, ahead)
    out, lse, some = outputs(rows, k)
    if some:
        launch = _plan(problem(rows, k, v, causal, scale, window, precision, ahead), rule)
        launch(lse, out, rows, k, v, out, rows, k, v)
    return (out, lse) if rows is q else (out.view(q.shape), lse.view(q.shape[:3]))
