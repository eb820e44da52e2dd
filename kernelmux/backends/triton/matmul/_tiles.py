"""Tiles for matmul: the fixed ones of the first rungs, and the rules of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kernelmux.backends.triton._launch.card import enough, fitting, held
from kernelmux.backends.triton._launch.launch import Config, cdiv, processors
from kernelmux.backends.triton.matmul._problem import MatmulShapes
from kernelmux.backends.triton.matmul._some_rows import some_rows_rule
from kernelmux.registry.util import cards


def _tile(m: int, n: int, k: int, warps: int, stages: int, group: int = 8, **more: Any) -> Config:
    tile = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": group}
    return {**tile, "num_warps": warps, "num_stages": stages, **more}


# By element size: 64 bytes of K per step.
SIMPLE = {2: _tile(64, 64, 32, warps=4, stages=1, group=1), 4: _tile(64, 64, 16, warps=4, stages=1, group=1)}
GROUPED = {2: _tile(64, 64, 32, warps=4, stages=1), 4: _tile(64, 64, 16, warps=4, stages=1)}
PIPELINED = {2: _tile(128, 128, 64, warps=8, stages=3), 4: _tile(64, 128, 16, warps=8, stages=3)}

# Operands that are loaded element by element keep an address for each: larger tiles spill, on sm_80 first.
ODD = {2: _tile(128, 64, 32, warps=8, stages=3), 4: _tile(64, 64, 16, warps=4, stages=3)}


def rule(p: MatmulShapes) -> Config:
    """Large tiles reuse more; smaller ones, or several programs for each, where large ones leave SMs without work."""
    if p.M <= (64 if p.dtype.itemsize == 2 else 32):
        return skinny_rule(p)
    if p.dtype.itemsize == 2 and (small := _small_tile(p)):
        return small
    if not p.vectors:
        return ODD[p.dtype.itemsize]
    if p.tiles(128, 128) < enough(p.device):
        return _tile(64, 64 if p.dtype.itemsize == 4 else 128, 128 // p.dtype.itemsize, warps=4, stages=4)
    if p.dtype == torch.float32:
        # H200, 4096^3: 3162 us; 3331 with 64 x 64 x 16, cuBLAS 2683.
        if p.precision == "tf32" and cards.of(p.device).multiplies("tf32"):
            return _tile(128, 128, 32, warps=4, stages=3)
        # Of few rounds small tiles leave less of the last one empty. 3000^3: 1291 us, 1341 with 128 x 64.
        few = p.tiles(128, 64) < 12 * processors(p.device)
        return _tile(64, 64, 32, warps=4, stages=3) if few else _tile(128, 64, 32, 8, 3)
    # H200, 8192^3: 770 TFLOP/s with rows of b contiguous, but 532 with columns, where square tiles reach 566.
    wide = min(p.M, p.N) >= 2048 and p.layouts == "rr"
    return _tile(128, 256, 64, warps=8, stages=3) if wide else _tile(128, 128, 64, warps=8, stages=4)


def skinny_rule(p: MatmulShapes) -> Config:
    """A few rows: the time is that of reading b once, for which each SM should have a program or more.

    H200, 16 x 4096 by 4096 x 14336 bf16: 40 us, as cuBLAS; halves and quarters of K 52 us with their sum. 56 x 5120 by 5120
    x 5120: 26.8 us in halves with the last tile, 28.7 in one piece with lines of 256 bytes.
    """
    if p.M > 32:
        tile, most = _tile(64, 64, 64, warps=4, stages=5), processors(p.device) * 3 // 2
    else:
        rows = 16 if p.M <= 16 or p.dtype.itemsize == 4 else 32
        tile, most = _tile(rows, 64, 256 // p.dtype.itemsize, warps=4, stages=4), processors(p.device)
    steps, tiles = cdiv(p.K, tile["BLOCK_K"]), max(p.tiles(tile["BLOCK_M"], 64), 1)
    split = max(min(most // tiles, steps // 4), 1)
    return {**tile, "SPLIT_K": 1 << (split.bit_length() - 1)}


def _small_tile(p: MatmulShapes) -> Config | None:
    """The tile of a product of few tiles, or of a few steps of elements that are loaded one by one.

    H200, bf16: 100 x 200 by 200 x 300 takes 6.4 us with the first, 7.2 with the second, 9.1 with 64 x 128; 64 products of
    197 x 64 by 64 x 197 13.4 with the second, 14.3 with 128 x 64 x 32; 38 of 103 x 192 by 192 x 582 15.2 with the third,
    17.4 with a stage more, 21.5 by copies; 24 of 664 x 248 by 248 x 67 15.8 and 16.2.
    """
    if 4 * p.tiles(64, 64) <= enough(p.device):
        return _tile(32, 32, 64, warps=4, stages=4)
    if p.tiles(64, 64) <= enough(p.device):
        return _tile(64, 64, 64, warps=4, stages=4)
    if not p.vectors and p.K <= 256:
        return _tile(64, 64, 64, warps=4, stages=3)
    return None


def _small(p: MatmulShapes) -> bool:
    """Whether a tile of 64 x 64 holds a product of 16-bit elements."""
    return max(p.M, p.N) <= 64 and p.dtype.itemsize == 2


def _wide(p: MatmulShapes) -> bool:
    """Whether tiles of 128 x 256 take no more rounds of all SMs than those of 128 x 128, each twice as long."""
    sms = processors(p.device)
    return 2 * cdiv(p.tiles(128, 256), sms) <= cdiv(p.tiles(128, 128), sms)


def persistent_rule(p: MatmulShapes) -> Config:
    """As `rule`, for tiles whose output leaves through shared memory too; the last one of each kind fits every card."""
    if p.tiles(128, 128) < enough(p.device):  # H200, 512 x 7168 by 7168 x 2048: 31 us, 45 with 64 of K a step
        return _fitting(p, [_tile(64, 128, 128, warps=4, stages=4, SUBTILES=1), _tile(64, 128, 64, 4, 4, SUBTILES=1)])
    if _small(p):  # H200, 1000 of 64^3 in bf16: 13.9 us, 15.8 with 128 x 128
        return _tile(64, 64, 64, warps=4, stages=4, group=4, SUBTILES=1)
    # H200, bf16: 793 TFLOP/s at 8192^3; at 3072^3 528, but 617 with the narrow tile.
    wide = [_tile(128, 256, 64, warps=8, stages=4, SUBTILES=2)] if _wide(p) else []
    return _fitting(p, [*wide, _tile(128, 128, 64, 4, 5, SUBTILES=1), _tile(128, 128, 64, 8, 3, SUBTILES=1)])


def _fitting(p: MatmulShapes, tiles: Sequence[Config]) -> Config:
    """The first tile whose stages and results fit into the shared memory of a program."""

    def shared(c: Config) -> int:
        operands = held(c["num_stages"], p.device) * (c["BLOCK_M"] + c["BLOCK_N"]) * c["BLOCK_K"]
        return int((operands + c["BLOCK_M"] * c["BLOCK_N"] // c["SUBTILES"]) * p.dtype.itemsize)

    return fitting(tiles, p.device, shared)


# Rows, columns, columns beside these, stages, products per microsecond of one SM.
Tile = tuple[int, int, int, int, float]
SPECIALISED: tuple[Tile, ...] = (
    (128, 256, 0, 4, 3.05e6),
    (128, 128, 64, 5, 3.02e6),
    (256, 128, 0, 4, 3.03e6),
    (256, 128, 64, 3, 2.95e6),
    (128, 256, 32, 4, 2.82e6),
    (128, 128, 0, 6, 2.95e6),
    (128, 128, 32, 5, 2.72e6),
    (128, 64, 32, 7, 2.4e6),
    (64, 128, 0, 8, 2.15e6),
)
# Only where columns of b are contiguous: otherwise 16 of them are 32 bytes of each line.
K_MAJOR_TOO: Tile = (128, 128, 16, 6, 2.5e6)
# As these, and without an activation. H200, us: 28569 x 2880 by 2880 x 5760 takes 1311 with 256 x 128, 1285 if the last
# round is shared, 1342 with 256 x 192, 1374 with 128 x 192, 1394 with 128 x 256.
TALL: tuple[Tile, ...] = ((256, 128, 0, 4, 3.08e6), (256, 128, 64, 3, 3.15e6))
# Microseconds of a round beside its products; with 256 x 192, whose sums leave few registers; and if these are stored by
# threads or have an activation. H200, us: 900 x 2880 by 2880 x 5120 takes 53.2 with that in one round, 51.5 with 128 x 192
# in two; 28569 x 2304 by 2304 x 2329, whose rows threads store, 537 and 482; 8192 x 4096 by 4096 x 4096 with a bias and
# silu 422 and 389.
BEGIN = 0.5, 3.0, 7.0
IDLE = 0.1  # so much of the time that multiprocessors have no work for is not lost
SMALL: tuple[Tile, ...] = ((64, 64, 0, 4, 1.4e6),)
# Where lines begin at odd multiples of 16 bytes, the copy engine reads five sectors for four, and larger tiles read
# less. H200, bf16: 1000 x 3000 by 3000 x 5000 takes 57.8 us with 256 x 160, 62.6 with 256 x 192, 85.0 with 128 x 256;
# 4096 x 4104 by 4104 x 4104 270.7, 235.7 and 286.6; 2000 x 3000 by 3000 x 4008 103.7, 115.4 and 90.8. Of copies with
# other lines, their time included, the first takes 98.1 us and more. Even and odd rows in turn, and a GROUP_M of 1, so
# that programs that run at one time share rows of a: in one run the first takes 51.7 in place of 58.3, the others 218.1
# of 235.1 and 84.2 of 91.5. With 256 x 128 the others take 193.4 and 74.8. With a bias and silu 20416 x 5368 by 5368 x
# 2880 takes 934 with that, 995 with 256 x 160, 1074 with 256 x 192, 1100 with 128 x 256.
LARGE_ODD: tuple[Tile, ...] = ((256, 128, 32, 4, 2.66e6), (256, 128, 64, 3, 2.79e6), (256, 128, 0, 4, 2.88e6))
LARGE_ODD_ENDED: tuple[Tile, ...] = ((256, 128, 32, 4, 2.43e6), (256, 128, 64, 3, 2.45e6), (256, 128, 0, 4, 2.64e6))
NARROW_ODD: tuple[Tile, ...] = (
    (128, 256, 0, 4, 2.45e6),
    (128, 128, 64, 5, 2.2e6),
    (128, 128, 0, 6, 1.8e6),
    (64, 128, 0, 8, 1.3e6),
)
# Microseconds of a tile with an activation and an odd number of columns, where threads store sums and activations one by
# one: so much longer with 256 rows and with 256 columns than with smaller ones. 27269 x 5672 by 5672 x 7001 takes with a
# bias and relu, and without: 4689 and 3308 us with 256 x 128, 3894 and 3391 with 128 x 256, 3756 and 3580 with 128 x 192.
STORED_TALL, STORED_WIDE = 31.0, 11.0


# Of a last round that programs share: microseconds of its launches, and sums that are left and added in one.
ENDING, SUMS_ADDED = 6.0, 0.5e6
# Bytes in a microsecond that L2 gives to all multiprocessors where it does not hold the operands, if these are copies that
# were just written or lines begin at multiples of 32 bytes: it bounds small tiles. H200, us, with copies: 5824 x 3001 by
# 3001 x 5760 takes 319 with 256 x 128, 372 with 128 x 128; 2944 x 14107 by 14107 x 2329 375 and 439, where 2944 x 14080 by
# 14080 x 2328, which is not copied, takes 294 and 278.
SLOW_L2, L2_HOLDS = 9.6e6, 50e6


def specialised_rule(p: MatmulShapes) -> Config:
    """The tile with which whole rounds of all SMs take the least time, by products per microsecond of one SM.

    H200, bf16: 791 TFLOP/s at 8192^3; at 3072^3 546 with the widest tile, but 619 with the next one. Odd lines with a
    GROUP_M of 1, unless a round then has no room for four rows of tiles, and reads most of b: 8192 x 8200 by 8200 x 8192
    takes 1605 us with that and 1538 with 8, 12000 x 2984 by 2984 x 6000 680 and 670, 4096 x 4104 by 4104 x 4104 202.5 and
    206.7.
    """
    (m, n, more, stages, _), split = quickest(p)
    in_rows = odd_lines(p) and 4 * cdiv(p.N, n + more) <= processors(p.device)
    config = {
        "BLOCK_M": m, "BLOCK_N": n, "MORE_N": more, "BLOCK_K": 64, "GROUP_M": 1 if in_rows else 8, "STAGES": stages,
        "SPLIT": split,
    }  # fmt: skip
    return some_rows_rule(p, config)


def odd_lines(p: MatmulShapes) -> bool:
    """Whether lines begin at odd multiples of 16 bytes, of a product that takes more than a tile."""
    apart = (*p.batch.a, *p.batch.b) if p.batch else ()
    return not _small(p) and (p.line_multiple == 16 or any(n * p.dtype.itemsize % 32 for n in apart))


def _choices(p: MatmulShapes, odd: bool) -> tuple[Tile, ...]:
    """The tiles among which a product chooses."""
    if odd:
        return (LARGE_ODD if p.end.plain else LARGE_ODD_ENDED) + NARROW_ODD
    if p.b_strides[0] != 1 or _small(p):
        return SMALL if _small(p) else SPECIALISED
    return (*SPECIALISED, K_MAJOR_TOO, *(TALL if p.end.activation == "none" else ()))


def quickest(p: MatmulShapes) -> tuple[Tile, int]:
    """The quickest tile, and how many programs share those of the last round."""
    sms, odd, active = processors(p.device), odd_lines(p), p.end.activation != "none"
    # Lines that begin at multiples of 16 bytes, but do not end there, are of copies.
    operands = 2 * p.products * p.K * (p.M + p.N)
    slow = (p.unit < 8 or p.line_multiple == 32) and operands > L2_HOLDS

    def microseconds(choice: tuple[Tile, int]) -> float:
        (m, n, more, _, rate), split = choice
        tiles = (p.in_turn(m) or p).tiles(m, n + more)
        read = min(tiles, sms) * (m + n + more) * 2 * p.K
        each = max(m * (n + more) * p.K / rate, slow * read / SLOW_L2)
        tall = m == 256 and more > 0 and not odd
        begin = BEGIN[(1 + (active or p.N % 8 > 0)) if tall else 0]
        stored = (STORED_TALL if m == 256 else STORED_WIDE if n == 256 else 0.0) if active and p.N % 2 else 0.0
        whole = begin + each + stored
        if split == 1:
            rounds = cdiv(tiles, sms)
            return rounds * whole - IDLE * (rounds - tiles / sms) * each
        return tiles // sms * whole + begin + each / split + ENDING + tiles % sms * split * m * n / SUMS_ADDED

    choices = _choices(p, odd)
    shared = [(tile, split) for tile in choices for split in (1, 2, 3, 4) if split == 1 or shares_rest(p, tile, split)]
    return min(shared, key=microseconds)


def shares_rest(p: MatmulShapes, tile: Tile, split: int) -> bool:
    """Whether so many programs can share each of the tiles that whole rounds leave over, and all run at one time."""
    m, n, more, *_ = tile
    left = p.tiles(m, n) % processors(p.device)
    plain = not more and p.batch is None and p.in_turn(m) is None
    return plain and 0 < left * split <= processors(p.device) and split * 256 <= p.K


def k_major_rule(p: MatmulShapes) -> Config:
    """H200, 4096^3: 353 TFLOP/s with b to be turned, 388 without; cuBLAS 393 and 400."""
    if p.tiles(128, 128) < enough(p.device):
        return _tile(64, 64, 32, warps=4, stages=4, SUBTILES=1)
    # At 3072^3 222 us with the wide tile, 199 with the narrow one.
    wide = [_tile(128, 256, 32, warps=8, stages=3, SUBTILES=2)] if _wide(p) else []
    return _fitting(p, [*wide, _tile(128, 128, 32, 4, 5, SUBTILES=1), _tile(128, 128, 32, 8, 3, SUBTILES=2)])
