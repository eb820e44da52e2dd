"""The loss of few long rows and its gradient, of what a launch before has found out about pieces of the rows.

A program folds the pieces of its row and writes a tile of the gradient; one more takes the losses of all rows.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

from kernelmux.backends.triton._losses.loss_rows import gradients, slope
from kernelmux.backends.triton._losses.targets import targets_of
from kernelmux.backends.triton._rows.row_statistics import exponential, finite
from kernelmux.backends.triton._rows.row_tiles import chunk_columns, chunk_masks, load_chunk, store_chunk


@triton.jit
def loss_pieces_kernel(
    out_ptr, grad_ptr, known_ptr, logits_ptr, target_ptr, M, V, units, target_step, ignore_index, smoothing,
    join: tl.constexpr, WANTED: tl.constexpr, SMOOTHED: tl.constexpr, PIECES: tl.constexpr, LANES: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr, LEADS: tl.constexpr,
):  # fmt: skip
    """known [M, numbers, PIECES] as pieces_kernel leaves it, and room for M more; rows of `units` times UNIT logits, the
    last ones, which L2 may still have, first. join: cross_entropy_join_kernel, in program 0. ROWS: at least M."""
    NUMBERS: tl.constexpr = 3 if SMOOTHED else 2
    if tl.program_id(0) == 0:
        lse_ptr = known_ptr + M * (NUMBERS * PIECES)
        join(out_ptr, lse_ptr, known_ptr, logits_ptr, target_ptr, M, V, V, target_step, ignore_index, smoothing,
             WANTED, SMOOTHED, PIECES, LANES, ROWS, LEADS)  # fmt: skip
    else:
        tiles = tl.cdiv(V, BLOCK)
        index = tl.program_id(0) - 1
        row = (M - 1 - index // tiles).to(tl.int64)
        cols = chunk_columns(index % tiles * BLOCK, BLOCK, tl.int32)
        masks = chunk_masks(cols, 0, V, False, UNIT, False)
        place = row * units * UNIT + cols
        x = load_chunk(logits_ptr + place, masks, "evict_first")
        target, counts, is_class = targets_of(target_ptr, row, row < M, V, target_step, ignore_index)
        h = 1.0
        if WANTED == "mean":
            every = tl.arange(0, ROWS).to(tl.int64)
            all_targets = targets_of(target_ptr, every, every < M, V, target_step, ignore_index)
            h = 1.0 / tl.sum(all_targets[1].to(tl.float32), 0)
        if LEADS:
            cuda.gdc_wait()
        lane = tl.arange(0, LANES)
        found = known_ptr + (row * (NUMBERS * PIECES) + lane)
        tops = tl.load(found, mask=lane < PIECES, other=-float("inf"))
        sums = tl.load(found + PIECES, mask=lane < PIECES, other=0.0)
        top = tl.max(tops, 0)
        total = tl.sum(sums * exponential(tops - finite(top)), 0)
        # A target that is no class may become one in fewer bits; its row is 0 or NaN all the same.
        of_row = slope((top, total), (target.to(tl.int32), counts, is_class), h, smoothing, V)
        store_chunk(grad_ptr + place, gradients(x, cols, of_row), masks)
