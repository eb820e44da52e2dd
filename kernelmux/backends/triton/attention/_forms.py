"""Which form `specialised` takes for a call: the one by which the busiest multiprocessor is done first."""

from __future__ import annotations

from typing import NamedTuple

from kernelmux.backends.triton._launch.launch import Config, processors, shared_bytes
from kernelmux.backends.triton.attention._problem import AttentionProblem
from kernelmux.backends.triton.attention._specialised import held_bytes, pieces
from kernelmux.backends.triton.attention._turns import lengths, shares


class BlockTime(NamedTuple):
    """us of a block of keys, by the width of the rows."""

    base: float
    column: float

    def at(self, width: int) -> float:
        """For rows of so many columns."""
        return self.base + self.column * width


class AttentionForm(NamedTuple):
    """Warpgroups and keys of a block, how long a block takes, and what a work takes besides, in blocks."""

    groups: int
    keys: int
    together: dict[int, int]  # programs whose registers a multiprocessor holds, by the widest rows
    start: float
    once: float  # us of a call
    alone: BlockTime  # of a program that waits for no other
    busy: BlockTime = BlockTime(0.0, 0.0)  # of a multiprocessor, where programs share it


# Fitted to the forms of 26 shapes (H200, us).
FORMS = (
    AttentionForm(2, 128, {256: 1}, start=3.8, once=9.3, alone=BlockTime(0.57, 0.0067)),
    AttentionForm(2, 64, {256: 1}, start=4.4, once=6.7, alone=BlockTime(0.37, 0.0043)),
    AttentionForm(1, 128, {96: 2}, start=1.8, once=8.9, alone=BlockTime(0.80, 0.0043), busy=BlockTime(0.13, 0.0060)),
    AttentionForm(
        1, 64, {64: 3, 192: 2, 256: 1}, start=2.5, once=7.5, alone=BlockTime(0.68, 0.0005), busy=BlockTime(0.11, 0.0031)
    ),
)
# Besides, for windows of up to as many keys.
NARROW = AttentionForm(
    1, 32, {192: 2}, start=2.1, once=7.6, alone=BlockTime(0.41, 0.0008), busy=BlockTime(0.10, 0.0023)
)
STAGES = 2
# Rows that are no whole 64 bytes begin anywhere in a line: one warpgroup, which reads keys from L2 more often, waits more.
BETWEEN_LINES = 1.17


def specialised_rule(p: AttentionProblem) -> Config:
    """Two warpgroups where there are long works for all multiprocessors; else one, in more and shorter programs.

    H200, bf16, us, warpgroups x keys x programs on a multiprocessor. 4 x 32 x 4096, D = 128, causal: 2x128 881, 1x64x2
    1014, 2x64 1066; 1 x 96/12 x 1626, D = 104, causal: 160, 233 and 167. 19 x 16/8 x 384, D = 80, causal: 59.4, 40.4 and
    48.1; 8 x 16/8 x 256, D = 128, causal: 25.6, 18.7 and 21.7. 63 x 8 x 507, D = 64, causal: 1x64x3 71.1, 1x64x2 79.4,
    2x64 89.8. Windows of 18, 6 x 4/1 x 5376, D = 88: 1x32x2 40.2, 1x64x2 42.1, 2x128 77.8; 9 x 2/1 x 7296, D = 184: 1x32x2
    60.8, 1x64 68.0, 2x64 89.2.
    """
    forms = (*FORMS, NARROW) if 0 < p.mask.window <= NARROW.keys else FORMS
    width, room = sum(pieces(p.D)), shared_bytes(p.device)
    fitting = ((form, programs) for form in forms if (programs := together(form, width, room)))
    form, programs = min(fitting, key=lambda found: _time(p, *found))
    return {"GROUPS": form.groups, "BLOCK_N": form.keys, "STAGES": STAGES, "TOGETHER": programs}


def together(form: AttentionForm, width: int, room: int) -> int:
    """Programs of a form on a multiprocessor, of which all have `room` bytes; 0 where not even one fits."""
    most = next((programs for widest, programs in form.together.items() if width <= widest), 0)
    return min(most, room // held_bytes(form.groups, form.keys, STAGES, width))


def _time(p: AttentionProblem, form: AttentionForm, programs: int) -> float:
    """us: the longest program as if it were alone, or all of a multiprocessor, with what its works take besides."""
    width = sum(pieces(p.D))
    works = lengths(p, 64 * form.groups, form.keys).repeat(p.B * p.H) + form.start
    each = shares(works, processors(p.device) * programs)
    longest = float(each.max()) * form.alone.at(width)
    if form.groups == 1:
        slower = BETWEEN_LINES if p.D % 32 else 1.0
        longest = max(longest, slower * form.busy.at(width) * float(each.reshape(programs, -1).sum(0).max()))
    return form.once + longest
