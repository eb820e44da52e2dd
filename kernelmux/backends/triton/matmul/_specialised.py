"""The tiled product with the work divided among warps (in Gluon): one loads, one or two warpgroups multiply.

The loader runs ahead through a ring of STAGES slots and across tiles, so the tensor cores wait for memory only at the
very start. Each multiplier owns 64 or 128 rows of the tile: 64 x 256 sums are 128 registers in each of its threads. A tile
is a power of two wide, or that and some more columns, which have a ring and sums of their own; of c^T, and a third one.
"""

from __future__ import annotations

from math import gcd
from typing import Any, NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from kernelmux.backends.triton._launch.hopper import barriers, copy_in, copy_out_wait, ring
from kernelmux.backends.triton._launch.launch import Config, Ints, Launch, Map, cdiv, plan, processors
from kernelmux.backends.triton.matmul._blocked import Rule, tile_of
from kernelmux.backends.triton.matmul._epilogue import PLAIN, EpilogueTensors, WholeTensor, end_parts
from kernelmux.backends.triton.matmul._lines import copying, line_of
from kernelmux.backends.triton.matmul._problem import Lead, MatmulShapes, described, problem
from kernelmux.backends.triton.matmul._some_rows import rows_leaving
from kernelmux.backends.triton.matmul._some_rows_ends import end_turned
from kernelmux.backends.triton.matmul._specialised_ends import END_ROWS, end_rest_kernel, end_sums
from kernelmux.backends.triton.matmul._specialised_works import row_in_turn, work_of
from kernelmux.registry.util.batch_strides import result

# Registers per thread: the multipliers hold the sums, the loader next to nothing.
MULTIPLIER_REGISTERS = gl.constexpr(240)
LOADER_REGISTERS = gl.constexpr(24)


@gluon.jit
def _copy(desc, outer, inner, row, column, ready, slot, BATCHED: gl.constexpr, ROWS: gl.constexpr):
    """The block at (row, column) of the matrix at (outer, inner) into a slot, transposed unless rows are contiguous."""
    line = row if ROWS else column
    at = column if ROWS else row
    if BATCHED:
        copy_in(desc, [outer, inner, line, at], ready, slot)
    else:
        copy_in(desc, [line, at], ready, slot)


@gluon.jit
def _matrix(block, BATCHED: gl.constexpr, ROWS: gl.constexpr):
    """A slot as a matrix, transposed unless rows are contiguous."""
    if BATCHED:
        block = block.reshape([block.shape[2], block.shape[3]])
    return block if ROWS else block.permute((1, 0))


@gluon.jit
def _load(
    a_desc, b_desc, more_desc, last_desc, a_ring, b_ring, more_ring, last_ring, full, empty, M, N, K, works, inner, first,
    left, share, SPLIT: gl.constexpr, BATCHED: gl.constexpr, A_OUTER: gl.constexpr, A_INNER: gl.constexpr,
    B_OUTER: gl.constexpr, B_INNER: gl.constexpr, A_ROWS: gl.constexpr, B_ROWS: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr, MORE_N: gl.constexpr, LAST_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr,
    STAGES: gl.constexpr, IN_TURN: gl.constexpr, ODD_ROWS: gl.constexpr,
):  # fmt: skip
    step = 0
    WIDTH: gl.constexpr = BLOCK_N + MORE_N + LAST_N
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, WIDTH)
    for index in range(gl.program_id(0), works, gl.num_programs(0)):
        tile, batch, begin, end = work_of(index, tiles, K, first, left, share, SPLIT)
        y = batch // inner
        x = batch % inner
        tile_m, tile_n = tile_of(tile, M, N, BLOCK_M, WIDTH, GROUP_M)
        m = tile_m * BLOCK_M
        n = tile_n * WIDTH
        early = 8 * x if IN_TURN else 0  # odd rows too from multiples of 32 bytes on
        if ODD_ROWS:
            x, m = row_in_turn(x, m)
        for at in range(begin, end, BLOCK_K):
            k = at - early
            slot = step % STAGES
            mbarrier.wait(empty.index(slot), (step // STAGES + 1) & 1)
            ready = full.index(slot)
            mbarrier.expect(ready, (BLOCK_M + WIDTH) * BLOCK_K * 2)
            _copy(a_desc, y * A_OUTER, x * A_INNER, m, k, ready, a_ring.index(slot), BATCHED, A_ROWS)
            _copy(b_desc, y * B_OUTER, x * B_INNER, k, n, ready, b_ring.index(slot), BATCHED, B_ROWS)
            if MORE_N:
                _copy(
                    more_desc, y * B_OUTER, x * B_INNER, k, n + BLOCK_N, ready, more_ring.index(slot), BATCHED, B_ROWS
                )
            if LAST_N:
                _copy(last_desc, 0, 0, k, n + BLOCK_N + MORE_N, ready, last_ring.index(slot), BATCHED, B_ROWS)
            step += 1


@gluon.jit
def _multiply(
    c_desc, bias_ptr, z_desc, a_ring, b_ring, more_ring, last_ring, pieces, full, empty, M, N, K, works, first, left, share,
    parts_ptr, c_line, c_apart, SPLIT: gl.constexpr, TURNED: gl.constexpr, PART: gl.constexpr, BIAS: gl.constexpr,
    ACTIVATION: gl.constexpr, BATCHED: gl.constexpr, A_ROWS: gl.constexpr, B_ROWS: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr, MORE_N: gl.constexpr, LAST_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr,
    STAGES: gl.constexpr, ROWS: gl.constexpr, PIECE: gl.constexpr, SLOTS: gl.constexpr, UNIT: gl.constexpr,
    ODD_ROWS: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    more_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MORE_N if MORE_N else BLOCK_N, 16])
    last_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, LAST_N if LAST_N else BLOCK_N, 16])
    step = 0
    WIDTH: gl.constexpr = BLOCK_N + MORE_N + LAST_N
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, WIDTH)
    for index in range(gl.program_id(0), works, gl.num_programs(0)):
        tile, batch, begin, end = work_of(index, tiles, K, first, left, share, SPLIT)
        tile_m, tile_n = tile_of(tile, M, N, BLOCK_M, WIDTH, GROUP_M)
        # [ROWS, BLOCK_N], [ROWS, MORE_N], [ROWS, LAST_N]
        acc = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
        if MORE_N:
            more = gl.zeros([ROWS, MORE_N], gl.float32, more_layout)
        if LAST_N:
            last = gl.zeros([ROWS, LAST_N], gl.float32, last_layout)
        for k in range(begin, end, BLOCK_K):
            slot = step % STAGES
            mbarrier.wait(full.index(slot), (step // STAGES) & 1)
            a = _matrix(a_ring.index(slot), BATCHED, A_ROWS).slice(PART * ROWS, ROWS, 0)
            b = _matrix(b_ring.index(slot), BATCHED, B_ROWS)
            acc = warpgroup_mma(a, b, acc, is_async=True)
            # The products of the step before are done, so its slot may be filled again.
            if MORE_N:
                more = warpgroup_mma(a, _matrix(more_ring.index(slot), BATCHED, B_ROWS), more, is_async=True)
            if LAST_N:
                last = warpgroup_mma(a, _matrix(last_ring.index(slot), BATCHED, B_ROWS), last, is_async=True)
                acc, more, last = warpgroup_mma_wait(3, deps=[acc, more, last])
            elif MORE_N:
                acc, more = warpgroup_mma_wait(2, deps=[acc, more])
            else:
                acc = warpgroup_mma_wait(1, deps=[acc])
            mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), pred=k > begin)
            step += 1
        if LAST_N:
            acc, more, last = warpgroup_mma_wait(0, deps=[acc, more, last])
        elif MORE_N:
            acc, more = warpgroup_mma_wait(0, deps=[acc, more])
        else:
            acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES))

        m = tile_m * BLOCK_M + PART * ROWS
        n = tile_n * WIDTH
        height = M
        if ODD_ROWS and c_line is None:
            batch, m = row_in_turn(batch, m)
        elif ODD_ROWS:
            height = M - batch
        if TURNED:
            part = parts_ptr + (index // left).to(gl.int64) * M * N if SPLIT > 1 else parts_ptr
            end_turned(
                c_desc, bias_ptr, z_desc, part, m, n, acc, M, N, pieces, SPLIT, PART, BIAS, ACTIVATION, PIECE, SLOTS
            )
            if MORE_N:
                end_turned(
                    c_desc, bias_ptr, z_desc, part, m, n + BLOCK_N, more, M, N, pieces, SPLIT, PART, BIAS, ACTIVATION,
                    PIECE, SLOTS,
                )  # fmt: skip
            if LAST_N:
                end_turned(
                    c_desc, bias_ptr, z_desc, part, m, n + BLOCK_N + MORE_N, last, M, N, pieces, SPLIT, PART, BIAS,
                    ACTIVATION, PIECE, SLOTS,
                )  # fmt: skip
        elif SPLIT > 1:
            rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))[:, None] + PART * ROWS
            columns = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, layout))[None, :]
            gl.store(parts_ptr + (index * BLOCK_M * BLOCK_N + rows * BLOCK_N + columns), acc)
        else:
            end_sums(
                c_desc, bias_ptr, z_desc, batch, m, n, acc, height, N, pieces.index(PART), c_line, c_apart, BIAS,
                ACTIVATION, BATCHED, PIECE, UNIT,
            )  # fmt: skip
            if MORE_N:
                end_sums(
                    c_desc, bias_ptr, z_desc, batch, m, n + BLOCK_N, more, height, N, pieces.index(PART), c_line, c_apart,
                    BIAS, ACTIVATION, BATCHED, PIECE, UNIT,
                )  # fmt: skip
    if c_line is None:
        copy_out_wait(0)


@gluon.jit
def _for_launches(SAYS: gl.constexpr, x):
    """An instruction about the launches before or after; x: any number."""
    gl.inline_asm_elementwise(SAYS + " mov.b32 $0, $1;", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def matmul_specialised_kernel(
    c_desc, a_desc, b_desc, more_desc, last_desc, bias_ptr, z_desc, parts_ptr, M, N, K, works, inner, first, left, share,
    c_line, c_apart, SPLIT: gl.constexpr, TURNED: gl.constexpr, LEAVES_REST: gl.constexpr, BIAS: gl.constexpr,
    ACTIVATION: gl.constexpr, BATCHED: gl.constexpr, A_OUTER: gl.constexpr, A_INNER: gl.constexpr, B_OUTER: gl.constexpr,
    B_INNER: gl.constexpr, A_ROWS: gl.constexpr, B_ROWS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    MORE_N: gl.constexpr, LAST_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
    ROWS: gl.constexpr, PIECE: gl.constexpr, SLOTS: gl.constexpr, IN_TURN: gl.constexpr, FOLLOWS: gl.constexpr,
    UNIT: gl.constexpr, ODD_ROWS: gl.constexpr,
):  # fmt: skip
    """c_desc, z_desc: pointers where there is c_line, for results that the copy engine cannot write: lines are c_line times
    UNIT elements apart, matrices c_apart times, and so many are stored at once. more_desc: of MORE_N columns of b behind
    BLOCK_N, for tiles whose width is no power of two; last_desc: of LAST_N behind these, of c^T only. IN_TURN: the batch is
    of the even rows of a and of the odd ones; ODD_ROWS: which have a row less. FOLLOWS: the launch before copies operands,
    and this one may begin before its end. LEAVES_REST: the one that follows computes the tiles behind these. SPLIT: this is
    that launch; so many programs share the K of a tile and leave sums in parts. TURNED: what is computed is c^T, whose
    parts, if K is shared, are of all tiles."""
    a_ring = ring(a_desc, STAGES)
    b_ring = ring(b_desc, STAGES)
    more_ring = ring(more_desc, STAGES) if MORE_N else b_ring
    last_ring = ring(last_desc, STAGES) if LAST_N else b_ring
    if c_line is None:
        pieces = ring(c_desc, BLOCK_M // ROWS * SLOTS)
    else:
        skewed: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
        pieces = gl.allocate_shared_memory(c_desc.dtype.element_ty, [BLOCK_M // ROWS, ROWS, PIECE], skewed)
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, BLOCK_M // ROWS)
    if FOLLOWS:
        _for_launches("griddepcontrol.wait;", M)
    if LEAVES_REST or (TURNED and SPLIT > 1):
        _for_launches("griddepcontrol.launch_dependents;", M)
    if BLOCK_M == ROWS:
        gl.warp_specialize(
            [
                (_multiply, (c_desc, bias_ptr, z_desc, a_ring, b_ring, more_ring, last_ring, pieces, full, empty,
                             M, N, K, works, first, left, share, parts_ptr, c_line, c_apart, SPLIT, TURNED, 0, BIAS,
                             ACTIVATION, BATCHED, A_ROWS, B_ROWS, BLOCK_M, BLOCK_N, MORE_N, LAST_N, BLOCK_K, GROUP_M,
                             STAGES, ROWS, PIECE, SLOTS, UNIT, ODD_ROWS)),
                (_load, (a_desc, b_desc, more_desc, last_desc, a_ring, b_ring, more_ring, last_ring, full, empty, M, N, K,
                         works, inner, first, left, share, SPLIT, BATCHED, A_OUTER, A_INNER, B_OUTER, B_INNER, A_ROWS,
                         B_ROWS, BLOCK_M, BLOCK_N, MORE_N, LAST_N, BLOCK_K, GROUP_M, STAGES, IN_TURN, ODD_ROWS)),
            ],
            [1],
            [LOADER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (c_desc, bias_ptr, z_desc, a_ring, b_ring, more_ring, last_ring, pieces, full, empty,
                             M, N, K, works, first, left, share, parts_ptr, c_line, c_apart, SPLIT, TURNED, 0, BIAS,
                             ACTIVATION, BATCHED, A_ROWS, B_ROWS, BLOCK_M, BLOCK_N, MORE_N, LAST_N, BLOCK_K, GROUP_M,
                             STAGES, ROWS, PIECE, SLOTS, UNIT, ODD_ROWS)),
                (_multiply, (c_desc, bias_ptr, z_desc, a_ring, b_ring, more_ring, last_ring, pieces, full, empty,
                             M, N, K, works, first, left, share, parts_ptr, c_line, c_apart, SPLIT, TURNED, 1, BIAS,
                             ACTIVATION, BATCHED, A_ROWS, B_ROWS, BLOCK_M, BLOCK_N, MORE_N, LAST_N, BLOCK_K, GROUP_M,
                             STAGES, ROWS, PIECE, SLOTS, UNIT, ODD_ROWS)),
                (_load, (a_desc, b_desc, more_desc, last_desc, a_ring, b_ring, more_ring, last_ring, full, empty, M, N, K,
                         works, inner, first, left, share, SPLIT, BATCHED, A_OUTER, A_INNER, B_OUTER, B_INNER, A_ROWS,
                         B_ROWS, BLOCK_M, BLOCK_N, MORE_N, LAST_N, BLOCK_K, GROUP_M, STAGES, IN_TURN, ODD_ROWS)),
            ],
            [4, 1],
            [MULTIPLIER_REGISTERS, LOADER_REGISTERS],
        )  # fmt: skip
    if SPLIT > 1:
        _for_launches("griddepcontrol.wait;", M)  # nothing after this launch may begin before the first one has ended


def _turned(p: MatmulShapes, config: Config, follows: bool) -> SpecialisedPlan:
    """The product as c^T = b^T a^T, so that tiles have as many rows of c as it needs; programs may share its K."""
    block_m, block_n, more_n, last_n, block_k = (
        config[n] for n in ("BLOCK_M", "BLOCK_N", "MORE_N", "LAST_N", "BLOCK_K")
    )
    share = cdiv(cdiv(p.K, config["SPLIT"]), block_k) * block_k
    split, tiles = cdiv(p.K, share), cdiv(p.N, block_m) * cdiv(p.M, block_n + more_n + last_n)
    rows, piece = max(64, block_m // 2), rows_leaving(block_n, last_n or more_n, split)
    a_strides, b_strides = p.b_strides[::-1], p.a_strides[::-1]
    plain: Any = WholeTensor()
    out = _map(p, (p.M, p.N), (p.N, 1), (piece, rows), ())
    maps: tuple[Any, ...] = (
        out,
        _map(p, (p.N, p.K), a_strides, (block_m, block_k), ()),
        _map(p, (p.K, p.M), b_strides, (block_k, block_n), ()),
        _map(p, (p.K, p.M), b_strides, (block_k, more_n), ()) if more_n else plain,
        _map(p, (p.K, p.M), b_strides, (block_k, last_n), ()) if last_n else plain,
    )
    end = p.end if split == 1 else PLAIN.ending
    meta = {
        **p.places, "A_ROWS": a_strides[1] == 1, "B_ROWS": b_strides[1] == 1, "num_warps": 4, "LEAVES_REST": False,
        "ROWS": rows, "PIECE": piece, "IN_TURN": False, "ODD_ROWS": False, "FOLLOWS": follows, "UNIT": 1,
        **end.meta, **config, "SPLIT": split,
    }  # fmt: skip
    numbers = p.N, p.M, p.K, tiles * split, 1, 0, tiles, share, None, None
    if split == 1:
        maps += () if end.plain else (plain, out)
        grid = (min(processors(p.device), tiles),)
        whole = Launch(
            matmul_specialised_kernel, grid, *end.missing, None, *numbers, maps=maps, launch_pdl=follows, **meta
        )
        return SpecialisedPlan(whole, turned=True)
    rest = Launch(
        matmul_specialised_kernel, (tiles * split,), *numbers, maps=(*maps, *[plain] * 3), launch_pdl=follows, **meta
    )
    return SpecialisedPlan(None, rest, end_parts(p.end, split, p.M, p.N, follows=True), (split, p.M, p.N), turned=True)


class SpecialisedPlan(NamedTuple):
    """The launch of whole rounds of tiles, if there are any; those of the tiles that they leave over, and of the end of
    these, whose sums in fp32 are of this shape; None and () if the first one computes all. copy: of lines of a, to memory
    of this shape, before the others."""

    whole: Launch | None
    rest: Launch | None = None
    end: Launch | None = None
    parts: Ints = ()
    turned: bool = False
    copy: Launch | None = None
    lines: Ints = ()

    def run(self, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, epilogue: EpilogueTensors) -> None:
        """Fills c, and what the epilogue saves."""
        if self.copy:
            x, a = a, a.new_empty(self.lines)
            self.copy(a, x)
        ends, factors = epilogue.arguments(c), (b, a, a, a) if self.turned else (a, b, b, b)
        if self.whole:
            self.whole(c, *factors, *ends)
        if self.rest and self.end:
            parts = c.new_empty(self.parts, dtype=torch.float32)
            self.rest(c, *factors, c, c, parts)
            self.end(parts, c, *(ends or (c, c)))


def specialised(
    a: torch.Tensor, b: torch.Tensor, rule: Rule, epilogue: EpilogueTensors, *, follows: bool = False
) -> torch.Tensor:
    """a @ b with one program per SM, its warps specialised. follows: operands are copies that were just launched."""
    c = result(a, b)
    if c.numel():
        _plan(problem(a, b, "ieee", epilogue.ending), rule, follows).run(c, a, b, epilogue)
    return c


@plan
def _plan(p: MatmulShapes, rule: Rule, follows: bool) -> SpecialisedPlan:
    config = {"TURNED": False, "LAST_N": 0, "SLOTS": 1, "COPIES": False, **rule(p)}
    if config.pop("COPIES"):  # for tiles of c^T
        line = line_of(p.K)
        copy = copying(p.device, p.M, line, p.a_strides[0], line, p.K)
        return _turned(p._replace(a_strides=(line, 1)), config, True)._replace(copy=copy, lines=(p.M, line))
    if config["TURNED"]:
        return _turned(p, config, follows)
    block_m, block_n, more_n, block_k = (config[name] for name in ("BLOCK_M", "BLOCK_N", "MORE_N", "BLOCK_K"))
    turns = p.in_turn(block_m)
    odd = turns is not None and p.M % 2 == 1
    p = turns or p
    rows, piece = max(64, block_m // 2), config.get("PIECE") or more_n or block_n // 2
    _, of_a, of_b = p.leading
    height = p.M - odd  # of the matrices of maps
    if odd:
        of_a = (of_a[0], (3, of_a[1][1]))
    of_c = ((p.products, p.M * p.N),) if p.batch else ()
    out = _map(p, (p.M, p.N), (p.N, 1), (rows, piece), of_c)
    if turns:
        out = _map(p, (height, p.N), (2 * p.N, 1), (rows, piece), ((2 + odd, p.N),))
    plain: Any = WholeTensor()
    lines: tuple[int | None, int | None] = (None, None)
    unit = gcd(8, p.N)
    if unit < 8:
        units = p.N // unit
        out, lines = plain, (2 * units, units) if turns else (units, p.M * units)
    maps = (
        out,
        _map(p, (height, p.K), p.a_strides, (block_m, block_k), of_a),
        _map(p, (p.K, p.N), p.b_strides, (block_k, block_n), of_b),
        _map(p, (p.K, p.N), p.b_strides, (block_k, more_n), of_b) if more_n else plain,
        plain,
    )
    split = config.get("SPLIT", 1)
    tiles = p.tiles(block_m, block_n + more_n)
    left = tiles % processors(p.device) if split > 1 else 0
    meta = {
        **p.places, "A_ROWS": p.a_strides[1] == 1, "B_ROWS": p.b_strides[1] == 1, "num_warps": 4,
        "ROWS": rows, "IN_TURN": turns is not None, "ODD_ROWS": odd, **config, "PIECE": piece, "UNIT": unit,
    }  # fmt: skip
    works = tiles - left
    whole = Launch(
        matmul_specialised_kernel, (min(processors(p.device), works),), *p.end.missing, None,
        p.M, p.N, p.K, works, p.inner, 0, works, p.K, *lines, maps=(*maps, *(() if p.end.plain else (plain, out))),
        LEAVES_REST=left > 0, FOLLOWS=follows, launch_pdl=follows, **p.end.meta, **{**meta, "SPLIT": 1},
    )  # fmt: skip
    if left == 0:
        return SpecialisedPlan(whole)
    share = cdiv(cdiv(p.K, split), block_k) * block_k
    split = cdiv(p.K, share)
    rest = Launch(
        matmul_specialised_kernel, (left * split,), p.M, p.N, p.K, left * split, p.inner, works, left, share, *lines,
        maps=(*maps, *[plain] * 3), LEAVES_REST=False, FOLLOWS=follows and not works,
        launch_pdl=works > 0 or follows,
        **PLAIN.ending.meta, **{**meta, "SPLIT": split},
    )  # fmt: skip
    end = Launch(
        end_rest_kernel, (block_m // END_ROWS, left), p.M, p.N, works, left, SPLIT=split, BLOCK_M=block_m,
        BLOCK_N=block_n, GROUP_M=config["GROUP_M"], ROWS=END_ROWS, num_warps=4, **p.end.meta,
    )  # fmt: skip
    return SpecialisedPlan(whole if works else None, rest, end, (split * left, block_m, block_n))


def _map(p: MatmulShapes, shape: Ints, strides: Ints, block: Ints, lead: Lead) -> Map:
    """Of a matrix, or of its transpose where the columns are what is contiguous."""
    element = gl.float16 if p.dtype == torch.float16 else gl.bfloat16
    shape, strides, block = described(shape, strides, block, lead)
    return Map(shape, strides, block, gl.NVMMASharedLayout.get_default_for(list(block), element))
