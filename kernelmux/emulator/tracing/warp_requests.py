"""What one memory instruction of a warp costs: sectors of global memory, wavefronts of shared memory.

Rows of the matrices here are requests (a warp that runs one instruction), columns its 32 lanes; NO_LANE marks a lane
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
NO_LANE = -1  # in place of the address of a lane


def rows(values: Array, rank: Array, lane: Array, warps: int) -> Array:
    """One row of 32 lanes per warp; `rank` numbers the warps that are here from 0."""
    table = np.full((warps, WARP), NO_LANE, np.int64)
    table[rank, lane] = values
    return table


def distinct_pairs(table: Array) -> tuple[Array, Array]:
    """Row and value of every different value of each row, without NO_LANE."""
    ordered = np.sort(table, axis=1)
    new = ordered != NO_LANE
    new[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    row, column = np.nonzero(new)
    return row, ordered[row, column]


def distinct(table: Array) -> Array:
    """How many different values each row has, without NO_LANE."""
    return np.bincount(distinct_pairs(table)[0], minlength=len(table))


def sectors(addresses: Array) -> Array:
    """Sectors that each request touches; no access of a lane crosses one, because it is aligned to its size."""
    return distinct(np.where(addresses == NO_LANE, NO_LANE, addresses // SECTOR))


def least_sectors(addresses: Array, size: int) -> Array:
    """Sectors that would hold the bytes of each request if they lay side by side."""
    return -(-distinct(addresses) * size // SECTOR)


def atomic_sectors(addresses: Array) -> Array:
    """Sectors that the atomics of each request touch: lanes that meet at one address take turns, neighbours do not.

    Measured on an H200: 32 lanes at one address count as 32 sectors, 32 lanes side by side as 4.
    """
    table = np.sort(addresses, axis=1)
    turn = np.zeros_like(table)
    for column in range(1, WARP):
        same = table[:, column] == table[:, column - 1]
        turn[:, column] = np.where(same, turn[:, column - 1] + 1, 0)
    return distinct(np.where(table == NO_LANE, NO_LANE, table // SECTOR * WARP + turn))


def wavefronts(offsets: Array, size: int, operation: str) -> tuple[Array, Array]:
    """Passes over the banks per request, and how few they would be without conflicts.

    In a pass a bank delivers one word, to as many lanes as want it. Warps are served as a whole, half by half for
    8 bytes per lane, quarter by quarter for 16; two parts of a load become one where neighbours (lanes 1 or 2 apart)
    read the same, as measured on an H200. The matrices of an ldmatrix never do: each is a pass of its own, even if all
    have the same rows. Lanes of an atomic that meet in one word take turns.
    """
    apart, least = _passes(offsets, size, phases(size), operation)
    if operation != "load" or size <= WORD:
        return _per_request(apart, offsets), _per_request(least, offsets)
    together, least_together = _passes(offsets, size, 2 * phases(size), operation)
    merges = alike(offsets.reshape(-1, 2 * phases(size)))
    chosen = np.where(merges, together, apart.reshape(-1, 2).sum(axis=1))
    least = np.where(merges, least_together, least.reshape(-1, 2).sum(axis=1))
    return _per_request(chosen, offsets), _per_request(least, offsets)


def phases(size: int) -> int:
    """How many lanes shared memory serves at a time."""
    return WARP * WORD // max(size, WORD)


def parts(offsets: Array, size: int, operation: str) -> list[Array]:
    """The lanes of one request in the parts that are served one after another."""
    apart, wide = phases(size), 2 * phases(size)
    if operation != "load" or size <= WORD:
        return list(np.arange(WARP).reshape(-1, apart))
    merges = alike(offsets.reshape(-1, wide))
    whole = np.arange(WARP).reshape(-1, wide)
    return [
        part
        for lanes, merged in zip(whole, merges, strict=True)
        for part in ([lanes] if merged else np.split(lanes, 2))
    ]


def alike(offsets: Array) -> Array:
    """Which rows have the same address in all pairs of lanes 1 apart, or in all pairs of lanes 2 apart."""
    same = np.zeros(len(offsets), bool)
    for distance in (1, 2):
        partner = offsets[:, np.arange(offsets.shape[1]) ^ distance]
        same |= ((partner == offsets) | (partner == NO_LANE) | (offsets == NO_LANE)).all(axis=1)
    return same


def _passes(offsets: Array, size: int, lanes: int, operation: str) -> tuple[Array, Array]:
    """Passes for each part of so many lanes, and 1 for each part that has a lane."""
    parts = offsets.reshape(-1, lanes)
    words = np.where(parts[..., None] == NO_LANE, NO_LANE, parts[..., None] // WORD + np.arange(max(size // WORD, 1)))
    return _fullest_bank(words.reshape(len(parts), -1), operation == "atomic"), (parts != NO_LANE).any(axis=1).astype(
        int
    )


def _per_request(values: Array, offsets: Array) -> Array:
    total: Array = values.reshape(len(offsets), -1).sum(axis=1)
    return total


def _fullest_bank(words: Array, every: bool) -> Array:
    """For each row the largest number of different words (or of words at all) that fall into one bank."""
    ordered = np.sort(words, axis=1)
    counted = ordered != NO_LANE
    if not every:
        counted[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    row, column = np.nonzero(counted)
    load = np.bincount(row * BANKS + ordered[row, column] % BANKS, minlength=len(words) * BANKS)
    fullest: Array = load.reshape(-1, BANKS).max(axis=1)
    return fullest
