"""Redundant stores: threads of one block store what should be one number, each rounded in its own way.

After a sum across lanes several threads hold it, and compilers may let each of them store it. If a product was fused
into the first addition, these sums differ in the last bits, and the hardware chooses which one stays: each is right
within the error of the sum, but bits may differ from GPU to GPU. That is a warning and no race.

Triton keeps what lanes hold several times in shared memory that only its compiler writes, for sums over fewer elements
than a block has threads: there words of any normal floats, and zero, may differ, of 16 bits too. Where the terms of such a
sum cancel, its roundings are far more than the last places, and still within the error of the sum.

The rule elsewhere: one store instruction, executed side by side by threads of one block; the same place; words that are
normal floats (as fp32 or fp64) and apart by at most `ULPS` units of the last place, 2^-20 of an fp32 value. Zero,
subnormals, NaN and infinities must be equal; so must integers below 2^23, because they have the bits of subnormals. Words
of 16 bits must be equal: sums are wider, and indices of 16 bits from 1024 on have the bits of normal floats.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelmux.emulator import settings

if TYPE_CHECKING:
    from kernelmux.emulator.analysis.flow import Step
    from kernelmux.emulator.running.group import Group

ULPS = {4: 8, 8: 8}  # by bytes of a word
SMALLEST = {2: 0x0080, 4: 0x0080_0000, 8: 0x0010_0000_0000_0000}  # the smallest normal number, of 16 bits that of bf16
INFINITY = {2: 0x7C00, 4: 0x7F80_0000, 8: 0x7FF0_0000_0000_0000}


class RedundantStore(UserWarning):
    """Threads of one block store results of different rounding to one place."""


def allowed(group: Group, view: np.ndarray, rows: Any, values: Any, different: np.ndarray, shared: bool) -> bool:
    """Whether the rule allows the differences between what lanes have stored and what stays.

    The lanes of the group have stored `values` at `rows` of `view`; `different` says which find another one there.
    shared: it is shared memory.
    """
    rows = np.broadcast_to(rows, (group.n,))
    concerned = np.isin(rows, rows[different])
    if not _one_block(rows[concerned], group.block[concerned]):
        return False
    kept, stored = view[rows[concerned]], np.broadcast_to(values, (group.n, *np.shape(values)[1:]))[concerned]
    rule = _finite if shared and settings.current_compiled_scratch() else _near
    return bool(rule(np.ascontiguousarray(kept), np.ascontiguousarray(stored)).all())


def _one_block(rows: np.ndarray, blocks: np.ndarray) -> bool:
    """Whether all lanes of each place are of one block."""
    order = np.lexsort((blocks, rows))
    rows, blocks = rows[order], blocks[order]
    return not bool(((rows[1:] == rows[:-1]) & (blocks[1:] != blocks[:-1])).any())


def _near(a: np.ndarray, b: np.ndarray) -> Any:
    """Which words are the same, or normal floats of one sign that are at most `ULPS` apart."""
    size = a.dtype.itemsize
    if size not in ULPS:
        return a == b
    x, y = (v.view(f"i{size}") for v in (a, b))
    most = x.dtype.type(np.iinfo(x.dtype).max)
    low, high = (np.minimum(x & most, y & most), np.maximum(x & most, y & most))
    normal = (low >= SMALLEST[size]) & (high < INFINITY[size])
    return (x == y) | (normal & ((x < 0) == (y < 0)) & (high - low <= ULPS[size]))


def _finite(a: np.ndarray, b: np.ndarray) -> Any:
    """Which words are the same, or both normal floats or zero, of either sign."""
    size = a.dtype.itemsize
    if size not in SMALLEST:
        return a == b
    x, y = (v.view(f"i{size}") for v in (a, b))
    most = x.dtype.type(np.iinfo(x.dtype).max)
    fits = [((v & most) == 0) | (((v & most) >= SMALLEST[size]) & ((v & most) < INFINITY[size])) for v in (x, y)]
    return (x == y) | (fits[0] & fits[1])


def warn(group: Group) -> None:
    """One line about the store that is running."""
    step = _running(group)
    text = "threads of a block store results that differ in the last bits to one place; which one stays is not defined"
    error = group.run.access.error("redundant store", text, group.run.activation.program.name, step, None, None)
    warnings.warn(f"{str(error).splitlines()[0]} (seen on the emulator)", RedundantStore, stacklevel=3)


def _running(group: Group) -> Step | None:
    """The step whose code is being executed."""
    program, frame = group.run.activation.program, sys._getframe()
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        if lines := program.compiler.steps_of.get(id(frame.f_code)):
            return program.flow.steps[lines[frame.f_lineno - 1]]
    return None
