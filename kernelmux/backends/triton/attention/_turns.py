"""In which order programs that stay take their works: lines in sections, of a section the longest works first."""

from __future__ import annotations

from collections.abc import Iterator
from math import log2

import numpy as np

from kernelmux.backends.triton._launch.launch import cdiv, plan, processors
from kernelmux.backends.triton.attention._problem import AttentionProblem

START = 1.5  # what a work takes besides its blocks of keys, in blocks
MOST = 32  # lines of a section, if it is not all lines


@plan
def section_of_turns(p: AttentionProblem, rows: int, block_n: int, together: int) -> int:
    """Lines of a section: those with the shortest schedule, where L2 holds their keys about as well.

    The order is fixed, and a bad one leaves a multiprocessor with half as much work again as another.
    """
    lines = p.B * p.H
    if not (p.mask.causal or p.mask.window) or lines < 2:
        return 1
    works, size = lengths(p, rows, block_n) + START, 4 * p.N * p.D * p.G / p.H
    least = max(float(works.sum()) * lines / processors(p.device), float(works.max()))
    best, found = float("inf"), 1
    for section in _sections(lines):
        factor = _l2_factor(section * size)
        if least * factor >= best:  # longer ones take no less
            break
        each = shares(_in_order(works, lines, section), processors(p.device) * together)
        time = float(each.reshape(together, -1).sum(0).max()) * factor
        if time < best:
            best, found = time, section
    return found


def _sections(lines: int) -> Iterator[int]:
    yield from range(1, min(lines, MOST) + 1)
    if lines > MOST:
        yield lines


def _l2_factor(size: float) -> float:
    """How much slower sections of so many bytes are: 1 % at 8 MiB, 3 % at 64 MiB (H200, N = 4096, D = 128)."""
    return 1 + 0.01 * log2(1 + size / (8 << 20))


def _in_order(works: np.ndarray, lines: int, section: int) -> np.ndarray:
    """The works of all lines as they are taken, from those of a line."""
    return np.concatenate([np.tile(works.repeat(section), lines // section), works.repeat(lines % section)])


def shares(works: np.ndarray, programs: int) -> np.ndarray:
    """What each program has of works in their order, every other turn going backwards."""
    turns = np.zeros((cdiv(len(works), programs), programs))
    turns.ravel()[: len(works)] = works
    turns[1::2] = turns[1::2, ::-1]
    return turns.sum(0)  # type: ignore[no-any-return]


def lengths(p: AttentionProblem, rows: int, block_n: int) -> np.ndarray:
    """Blocks of keys of each block of queries, the last queries first."""
    causal, shift, window = p.mask
    start = np.arange(cdiv(p.M, rows))[::-1] * rows
    end = np.minimum(np.minimum(start + rows, p.M) + shift, p.N) if causal else np.full(len(start), p.N)
    begin = np.maximum(start + shift - window + 1, 0) if window else np.zeros_like(end)
    blocks = np.maximum(-(-end // block_n), 1)
    return blocks - np.minimum(begin // block_n, blocks - 1)  # type: ignore[no-any-return]
