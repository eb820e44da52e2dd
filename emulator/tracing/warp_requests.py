"""What one memory instruction of a warp costs: sectors of global memory, wavefronts of shared memory.

Rows of the matrices here are requests (a warp that runs one instruction), columns its 32 lanes; NOBODY marks a lane
that takes no part. The definitions are those of Nsight Compute: `l1tex__t_sectors_pipe_lsu_mem_global_op_ld` counts
distinct 32-byte sectors per request, `l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld` the wavefronts of a
request above those that it needs at least (CUDA C++ Best Practices Guide, "Coalesced Access", "Shared Memory").
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
WARP, SECTOR, BANKS, WORD = 32, 32, 32, 4  # lanes; bytes; banks; bytes per bank
NOBODY = -1


def rows(values: Array, rank: Array, lane: Array, warps: int) -> Array:
    """One row of 32 lanes per warp; `rank` numbers the warps that are here from 0."""
    table = np.full((warps, WARP), NOBODY, np.int64)
    table[rank, lane] = values
    return table


def distinct_pairs(table: Array) -> tuple[Array, Array]:
    """Row and value of every different value of each row, without NOBODY."""
    ordered = np.sort(table, axis=1)
    new = ordered != NOBODY
    new[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    row, column = np.nonzero(new)
    return row, ordered[row, column]


def distinct(table: Array) -> Array:
    """How many different values each row has, without NOBODY."""
    return np.bincount(distinct_pairs(table)[0], minlength=len(table))


def sectors(addresses: Array) -> Array:
    """Sectors that each request touches; no access of a lane crosses one, because it is aligned to its size."""
    return distinct(np.where(addresses == NOBODY, NOBODY, addresses // SECTOR))


def least_sectors(addresses: Array, size: int) -> Array:
    """Sectors that would hold the bytes of each request if they lay side by side."""
    return -(-distinct(addresses) * size // SECTOR)


def phases(offsets: Array, size: int) -> Array:
    """The rows that shared memory serves one after another: warps, half warps for 8 bytes, quarter warps for 16."""
    return offsets.reshape(-1, WARP * WORD // max(size, WORD))


def wavefronts(offsets: Array, size: int, atomic: bool = False) -> Array:
    """Passes over the banks per request: in each pass a bank delivers one word, to as many lanes as want it.

    Lanes of an atomic that meet in one word take turns.
    """
    parts = phases(offsets, size)
    lanes_words = np.arange(max(size // WORD, 1))
    words = np.where(parts[..., None] == NOBODY, NOBODY, parts[..., None] // WORD + lanes_words)
    return _fullest_bank(words.reshape(len(parts), -1), atomic).reshape(len(offsets), -1).sum(axis=1)


def least_wavefronts(offsets: Array, size: int) -> Array:
    """Passes without any conflict: one per phase that has a lane."""
    return (phases(offsets, size) != NOBODY).any(axis=1).reshape(len(offsets), -1).sum(axis=1)


def _fullest_bank(words: Array, every: bool) -> Array:
    """For each row the largest number of different words (or of words at all) that fall into one bank."""
    ordered = np.sort(words, axis=1)
    counted = ordered != NOBODY
    if not every:
        counted[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    row, column = np.nonzero(counted)
    load = np.bincount(row * BANKS + ordered[row, column] % BANKS, minlength=len(words) * BANKS)
    return load.reshape(-1, BANKS).max(axis=1)
