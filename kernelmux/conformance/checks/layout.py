"""Inputs in every layout a tensor can have: strided, misaligned, expanded, overlapping; each alone and all together.

Whatever the inputs look like, the outputs are fresh and contiguous, and the inputs stay as they are (`Judge.call`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from kernelmux.conformance.check import Check
from kernelmux.conformance.inputs import generate, trials
from kernelmux.conformance.inputs.layouts import LAYOUTS
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging import ahead, asked_less
from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.variations import resize
from kernelmux.registry.cases import Case
from kernelmux.registry.spec import Axis, OpSpec

SQUARES = (12, 16, 64, 128)  # lengths of all axes of a call whose tensors are one; the first that a variant can run
LEAD = (3, 4)  # axes before the last one of a call with several, each with a pitch of its own
MANY = ((4, 4, 4), (2, 3, 3, 4, 4))  # axes of calls of many ranks, some of one length
ROW = 24
ALIGNED = 32  # length of all axes of a call that the fastest path of a kernel can take
BLOCKS = 131  # length of all axes of a call that takes several blocks
LONG = (5, 4099)  # rows of more than 8 KiB, and how long they are
PITCHES = (
    "transposed with a gap",
    "axes reversed",
    "rows and matrices with gaps of their own",
    "matrices one row apart",
    "first axis expanded",
)
GAPS = ("transposed", "transposed with a gap", "rows with an aligned gap")
SLICES = ("matrices one row apart", "rows and matrices with gaps of their own")
DEEP = (*PITCHES, "transposed", "every second element", "last axis expanded")  # of emulated calls of higher rank
BY_SIZE = (  # what depends on how many bytes an element has: whether 16 of them lie together, and where that begins
    "rows with an aligned gap",
    "negative bit",
    "address 2 modulo 16",
    "address 4 modulo 16",
    "address 8 modulo 16",
)
TURNS = 2  # pitches, in turn, of each emulated call that differs in its axis, a choice or equal lengths alone


def run(probe: Probe) -> None:
    for turn, base in enumerate(_bases(probe)):
        everything = (turn == 0 or not probe.emulated) and probe.options.tier != "smoke"
        _examine(probe, arrangements(base, everything, in_turn=probe.brief))
    if not probe.options.cases and probe.options.tier != "smoke":
        _examine(probe, in_other_dtypes(probe))
        _examine(probe, asked_less.shared_out(probe, of_higher_rank(probe)))
        _examine(probe, with_axes_of_their_own(probe))
        _examine(probe, asked_less.shared_out(probe, aligned(probe)))
        _examine(probe, in_several_blocks(probe))
        _examine(probe, of_long_rows(probe))
        _examine(probe, shared(probe))


def _bases(probe: Probe) -> list[Trial]:
    """Small calls of the spec; in a brief run, which lays out many others, the one with most axes longer than one."""
    if not probe.emulated:
        return probe.sample(6)
    found = probe.sample(2)
    return sorted(found, key=_real_axes, reverse=True)[:1] if probe.brief else found


def _real_axes(trial: Trial) -> int:
    return max(sum(n > 1 for n in x.shape) for x in trial.tensors.values())


def _examine(probe: Probe, found: Iterator[Trial]) -> None:
    for trial in ahead.trials(probe, filter(probe.able, found)):
        with probe.judge(trial) as judge:
            judge.accurate(judge.call())


def arrangements(base: Trial, everything: bool, only: tuple[str, ...] = (), in_turn: bool = False) -> Iterator[Trial]:
    """The call with its tensors in every layout: together and, where there are several (and `everything`), alone.

    Then each tensor in a layout of its own, so that no pitch can stand for that of another tensor. only: of these layouts.
    in_turn: of the tensors that have a layout alone, another one for each layout, and for each seed.
    """
    names = list(base.tensors)
    following = trials.computed(base.spec)
    for turn, layout in enumerate(layout for layout in LAYOUTS if not only or layout.name in only):
        # Where the values change, tensors that are computed from others follow these.
        placed = {name: x for name, x in base.tensors.items() if layout.same or name not in following}
        made = {name: new for name, x in placed.items() if (new := layout.of(x)) is not None}
        if made:
            yield _trial(base, made, f"{', '.join(made)}: {layout.name}", layout.same)
        alone = list(made) if everything and len(names) > 1 and len(made) > 1 else []
        for name in alone[(turn + base.seed) % len(alone) :][:1] if in_turn and alone else alone:
            yield _trial(base, {name: made[name]}, f"{name}: {layout.name}", layout.same)
    if len(names) > 1:
        yield from _mixed(base)


def _mixed(base: Trial) -> Iterator[Trial]:
    """Every tensor in another one of the layouts that keep the values."""
    plain = [layout for layout in LAYOUTS if layout.same and not layout.negated]
    made: dict[str, torch.Tensor] = {}
    for turn, (name, x) in enumerate(base.tensors.items()):
        able = [new for layout in plain if (new := layout.of(x)) is not None]
        if able:
            made[name] = able[(3 + turn) % len(able)]
    if made:
        yield _trial(base, made, "each in a layout of its own", True)


def in_other_dtypes(probe: Probe) -> Iterator[Trial]:
    """Where calls are emulated: a small matrix in every dtype but that of the first call of `run`.

    In a brief run in the layouts that depend on the dtype's size, else in all of them.
    """
    if not probe.emulated:
        return
    taken = {trial.dtype for trial in _bases(probe)[:1]}
    for trial in probe.sample(6, where=lambda t: t.dtype not in taken and max(x.dim() for x in t.tensors.values()) > 1):
        if trial.dtype not in taken:
            taken.add(trial.dtype)
            yield from arrangements(trial, everything=False, only=BY_SIZE if probe.brief else ())


def of_higher_rank(probe: Probe) -> Iterator[Trial]:
    """A call with two axes before the last, in the layouts that only such a call has, for operators of any rank."""
    spec = probe.spec
    if not any(t.any_rank for t in spec.tensors):
        return
    flat = any(t.flat for t in spec.tensors)
    case = generate.case_of_lengths(spec, dict.fromkeys(generate.letters(spec), ROW), (*LEAD, ROW) if flat else LEAD)
    base = _first_able(probe, [case], probe.options.seed)
    if base is not None:
        yield from arrangements(base, everything=False, only=DEEP if probe.emulated else ())
    letters = generate.letters(spec)
    many = [generate.case_of_lengths(spec, dict.fromkeys(letters, m[-1]), m if flat else m[:-1]) for m in MANY]
    along = [generate.with_scalars(case, {i.name: 1}) for i in spec.scalars if isinstance(i, Axis)]
    along += [generate.with_scalars(case, {i.name: v}) for i in generate.choices(spec) for v in generate.pool(i)]
    for turn, other in enumerate([*many, *along], 1):  # in another dtype than the one above
        base = _first_able(probe, [other], probe.options.seed + turn)
        if base is not None:
            few = probe.brief and turn != len(MANY)  # the call of the highest rank has all of them
            only = _in_turn(turn) if few else PITCHES
            yield from arrangements(base, turn == 1 or not probe.emulated, only, in_turn=probe.brief)


def _in_turn(turn: int) -> tuple[str, ...]:
    """A few of the pitches, others for the next turn."""
    return tuple(PITCHES[(TURNS * turn + i) % len(PITCHES)] for i in range(TURNS))


def with_axes_of_their_own(probe: Probe) -> Iterator[Trial]:
    """For operators of one rank above two: calls that have no axis of length one, so that every pitch counts.

    One has the scalars at their defaults, the other has the last value of each pool.
    """
    spec = probe.spec
    if all(t.any_rank or max(map(len, t.forms)) < 3 for t in spec.tensors):
        return
    case = generate.compact(spec, probe.implementation.requires)
    for turn, other in enumerate(dict.fromkeys((case, generate.varied(spec, case, -1))) if case else ()):
        base = _first_able(probe, [other], probe.options.seed + turn)
        if base is not None:
            only = SLICES if probe.emulated else PITCHES
            yield from arrangements(base, turn == 0, only, in_turn=probe.brief)


def aligned(probe: Probe) -> Iterator[Trial]:
    """A matrix, or several, whose axes are multiples of every usual width, in every dtype.

    Where calls are emulated in the shortest one, which has most ways to be misaligned, and with few layouts the longest.
    """
    case = _matrices(probe.spec, ALIGNED)
    if case is None:
        return
    dtypes = probe.options.dtypes_of(probe.spec)
    by_size = sorted(range(len(dtypes)), key=lambda i: dtypes[i].itemsize)
    for turn in dict.fromkeys((by_size[0], by_size[-1]) if probe.emulated else by_size):
        base, few = _first_able(probe, [case], turn), probe.emulated and turn != by_size[0]
        if base is not None:
            yield from arrangements(base, everything=not probe.emulated, only=GAPS if few else ())


def in_several_blocks(probe: Probe) -> Iterator[Trial]:
    """Matrices with gaps that no block of a kernel covers alone: those that others take in one piece have small calls."""
    case = _matrices(probe.spec, BLOCKS)
    base = _first_able(probe, [case] if case else [], probe.options.seed)
    if base is not None:
        yield from arrangements(base, everything=False, only=GAPS)


def of_long_rows(probe: Probe) -> Iterator[Trial]:
    """A few rows with gaps that kernels hold, or ask for ahead, as they do not with short ones; results have no gaps."""
    spec = probe.spec
    case = _matrices(spec, LONG[0])
    if case is not None:
        last = resize.names(spec, case, spec.leading.name)[-1]
        case = generate.refitted(spec, resize.resized(spec, case, {last: LONG[1]}))
    base = _first_able(probe, [case] if case else [], probe.options.seed)
    if base is not None:
        yield from arrangements(base, everything=False, only=GAPS[-1:])


def _matrices(spec: OpSpec, length: int) -> Case | None:
    """The call of a matrix, or several, all of whose axes have a length; None if the operator takes others."""
    forms = [form for t in spec.tensors for form in t.forms]
    own = max((len(form) - 1 for form in forms if "..." in form), default=1)
    if own > 2 or any(len(form) > 2 for form in forms if "..." not in form):
        return None
    leading = 2 if any(t.flat for t in spec.tensors) else 2 - own
    return generate.case_of_lengths(spec, dict.fromkeys(generate.letters(spec), length), (length,) * leading)


def shared(probe: Probe) -> Iterator[Trial]:
    """Calls that are given one tensor more than once: as it is, seen from the side (x and x.t()), one row of it again.

    And calls whose tensors begin at one address, whatever their shapes.
    """
    spec = probe.spec
    if len(spec.tensors) < 2 or spec.hosted:
        return
    cases = [_square(spec, n) for n in SQUARES]
    base = _first_able(probe, cases, probe.options.seed)
    if base is None:
        return
    names = [name for name, x in base.free.items() if x.dim() > 1]
    x = base.tensors[names[0]]
    same = {name: t for name, t in base.free.items() if t.dtype == x.dtype}
    alike = [name for name in names if name in same and same[name].shape == x.shape]
    if len(alike) > 1:
        yield base.changed(f"{', '.join(alike)}: one tensor", **dict.fromkeys(alike, x))
        turned = {name: x.mT if turn % 2 else x for turn, name in enumerate(alike)}
        yield base.changed(f"{', '.join(alike)}: one tensor, every second time transposed", **turned)
        rows = {name: x[:1].expand(x.shape) if turn % 2 else x for turn, name in enumerate(alike)}
        yield base.changed(f"{', '.join(alike)}: one tensor, every second time its first row expanded", **rows)
    largest = max(same.values(), key=torch.Tensor.numel).contiguous()
    first = {name: largest.flatten()[: t.numel()].view(t.shape) for name, t in same.items()}
    if len(first) > 1:
        yield base.changed(f"{', '.join(first)}: at one address", **first)


def _square(spec: OpSpec, n: int) -> Case:
    """The call whose last two axes have length n, and all that stand before them in some tensor length one."""
    last = {d for t in spec.tensors for d in t.forms[0][-2:]} - {d for t in spec.tensors for d in t.forms[0][:-2]}
    flat = any(t.flat for t in spec.tensors)
    return generate.case_of_lengths(
        spec, {d: n if d in last else 1 for d in generate.letters(spec)}, (n, n) if flat else (n,)
    )


def _first_able(probe: Probe, cases: list[Case], turn: int) -> Trial | None:
    """The first of the calls that the variant can run, in the dtype whose turn it is."""
    for case in cases:
        dtypes = probe.options.dtypes_of(probe.spec)
        order = [dtypes[(turn + i) % len(dtypes)] for i in range(len(dtypes))]
        fits = [d for d in order if generate.permitted(probe.spec, case, d)]
        made = (probe.make(case, dtype) for dtype in fits)
        found = next((t for t in made if not probe.reasons(t)), None)
        if found is not None:
            return replace(found)
    return None


def _trial(base: Trial, made: dict[str, torch.Tensor], note: str, same: bool) -> Trial:
    trial = base.changed(note, **made)
    if same:
        trial.__dict__["references"] = base.references  # the values are the same
    return trial


CHECK = Check(
    run=run, column="layout", summary="strided, misaligned, expanded and overlapping inputs, each and all together"
)
