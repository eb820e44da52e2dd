"""Which rows are in pieces, and how long these are."""

from __future__ import annotations

from kernelmux.backends.triton._launch.launch import Config, cdiv, processors
from kernelmux.backends.triton._rows.row_plan import OF_8_WARPS, Demand
from kernelmux.backends.triton._rows.rows import Walk, clamp, next_power

PIECE, MOST_PIECES = 8192, 32  # elements of a row for a program, where rows are in pieces
# Elements of a piece at most, however many pieces that makes: of four times as many a thread would spill 6,788 bytes. H200,
# bf16, log_softmax 1 x 4000000 13.8 us (117.3).
LONGEST_PIECE = 32768
# Multiprocessors to a row in pieces at least. H200, us, and by a program for each row: bf16, softmax 3 x 100001 8.5 (16.0),
# 65 x 131071 26 (21); log_softmax_backward 1 x 200000 7.0 (22.9); rms_norm 16 x 50257 9.3 (14.3), 120 x 50257 22.5 (17.7);
# in fp32 softmax_backward 4 x 262144 10.5 (41.4), layer_norm 2 x 252224 25.8 (44.2).
FEW_IN_PIECES = 4


def in_pieces(w: Walk, config: Config, demand: Demand, share: int = FEW_IN_PIECES) -> bool:
    """Whether rows that a program does not hold in registers are few, of `share` multiprocessors each, and dense."""
    dense = len(w.sizes) == 1 and w.along and all(strides == (w.length,) for strides in w.strides)
    held = w.length * demand.inputs <= OF_8_WARPS * 32 * config["num_warps"]
    return dense and not held and share * w.sizes[0] <= processors(demand.device)


def pieces_rule(N: int, itemsize: int, inputs: int) -> Config:
    """Columns of a chunk and CHUNKS of a piece; rows and columns of a tile of the second kernel; a program for each row.

    Pieces are a matter of the length of a row alone.
    """
    pieces = max(clamp(next_power(cdiv(N, PIECE)), 1, MOST_PIECES), next_power(cdiv(N, LONGEST_PIECE)))
    length = cdiv(N, pieces)
    block = clamp(next_power(length), 128, 2048)
    config = {"BLOCK": block, "CHUNKS": cdiv(length, block), "num_warps": clamp(block // 256, 1, 8)}
    return {**config, "BLOCK_M": 1, "BLOCK_N": 8192 // (itemsize * next_power(inputs)), "PROGRAMS": 0}
