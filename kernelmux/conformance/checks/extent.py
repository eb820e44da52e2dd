"""Axes longer than 65,535, one after the other: what a grid can count in y and z ends there. And large regular ones.

The other axes are short, so that the tensors are small, but for one that has to grow along (`_grown`). Indices into a long
axis point to its end. Of the emulator's blocks the first and the last few run; where these do not write the last slices,
or not from what earlier kernels of the call wrote whole, all do; where that takes too long, of a shorter axis (`LESS`).
Where the blocks have walked over all of one axis, others become longer step by step (`_ever_longer`).
In tier smoke emulated calls have the length of that axis at once, unless its slices know nothing of one another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from zlib import crc32

import torch

from kernelmux import emulator
from kernelmux.conformance.check import Check
from kernelmux.conformance.inputs import generate
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging import asked_less
from kernelmux.conformance.judging.probe import Failed, Judge, Probe
from kernelmux.conformance.variations import large_tensors, neighbouring_trials, resize
from kernelmux.conformance.variations import partial_emulation as some_blocks
from kernelmux.conformance.variations.partial_emulation import Unsuitable
from kernelmux.conformance.variations.resize import AxisName
from kernelmux.emulator.launch_log import Launch
from kernelmux.registry.backend import Backend
from kernelmux.registry.cases import Case
from kernelmux.registry.spec import REQUIRED, OpSpec
from kernelmux.registry.util import cards

LONG = 65537  # prime
LESS = 1031  # prime: where all blocks have to run, and those of a longer axis take too long
LEAST = 131  # prime: where those of that one take too long as well
STAY = 2  # blocks of each multiprocessor
TOO_MANY = some_blocks.UNSUITABLE["time limit"]
IN_TURN = "a few of its blocks say nothing; all of them run for another variant, or with another seed"
ELEMENTWISE = 2**20  # elements in a row, of an operator that takes any shape
REGULAR = (1024, 512)  # of all axes, or of two: what kernels have fast ways for
ROOM = 2**22  # elements in and out of a call whose axes are all of such a length
FLOPS = 2**24  # of a call whose axes are all of such a length
SHORT = 2  # the length of other axes, where that is allowed
ELEMENTS = 2**25  # of an input, at most
OUTPUT = 2**28  # elements of an output, at most: in float64, and its bound, 2 GiB each
WORK = 2**34  # flops of a call, at most: what a reference holds on the way grows with them
SECONDS = 3.0  # of processor time for an emulated call
SECONDS_OF_SUMS = 0.5  # where the axis is summed over: a block may walk along all of it
TOGETHER = 2**14  # lanes that the emulator runs side by side
FULLER = 1.5  # times the seconds of a few blocks: so many lanes at least
SOON = 0.5  # seconds: calls that take longer with all of their blocks take turns, by the axis
COMPILED = 8  # times longer than to run a few blocks it takes to compile for them as well, at most


def run(probe: Probe) -> None:
    for turn, base in enumerate(_bases(probe)):
        case, walks = resize.case_of(probe, base), False
        for axis in resize.axes(probe.spec, case):
            walks |= _as_long_as_can_be(probe, base, case, axis, walks)
        if turn == 0:
            _regular(probe, base, case)
    if not probe.records:
        probe.skip_all("no axis may be that long")


def _as_long_as_can_be(probe: Probe, base: Trial, case: Case, axis: AxisName, walks: bool) -> bool:
    """Ask for a long axis, or where that says nothing for a shorter one; whether the blocks walk over all of a long one.

    walks: whether they did for an axis before.
    """
    if not _counted_by_grids(probe, base, case, axis):
        _long(probe, base, case, axis, LESS)
        return False
    stay = _blocks_that_stay(probe, base, case, axis) if probe.emulated else 0
    if walks or stay:
        _ever_longer(probe, base, case, axis, (LEAST, _beyond(LESS, stay), LONG))
        return True
    if _long(probe, base, case, axis, LONG):
        return False
    if TOO_MANY not in probe.records[-1].text:
        _long(probe, base, case, axis, LESS)
        return False
    _ever_longer(probe, base, case, axis, (LEAST, LESS))
    return True


def _ever_longer(probe: Probe, base: Trial, case: Case, axis: AxisName, lengths: Sequence[int]) -> None:
    """Ask for a short axis first: what that takes tells whether the emulator would come to the end of a longer one.

    Without it a matmul of blocks that stay waits for 28 s and learns nothing of four axes; with it for 11, and of one.
    """
    shorter, seconds, slope = 0, 0.0, 0.0
    for length in lengths:
        if seconds + slope * (length - shorter) > SECONDS and _few_blocks(probe, base, case, axis, length):
            probe.skip(base.changed(f"{axis} = {length}"), some_blocks.reason_text(TOO_MANY))
            continue
        begin = time.process_time()
        if not _long(probe, base, case, axis, length):
            return
        before, seconds = seconds, time.process_time() - begin
        shorter, slope = length, (seconds - before) / (length - shorter)


def _few_blocks(probe: Probe, base: Trial, case: Case, axis: AxisName, length: int) -> bool:
    """Whether a kernel of that call has no more blocks than stay side by side on a GPU: they have more to do then."""
    trial = _first(probe, base, case, axis, length)
    return trial is None or any(n <= STAY * cards.emulated().processors for n in some_blocks.blocks(probe, trial))


def _blocks_that_stay(probe: Probe, base: Trial, case: Case, axis: AxisName) -> int:
    """The blocks of a kernel that has as many as stay side by side on a GPU, for a long axis as for a shorter one; else 0.

    They walk. Of attention's `cuda/wgmma` 65,537 batches took the emulator 3 s, and it did not come to the end. The long
    axis comes first: where blocks do not walk it is asked next, and no kernel is compiled for the shorter one.
    """
    processors, found = cards.emulated().processors, 0
    for length in (LONG, LESS):
        trial = _first(probe, base, case, axis, length)
        counted = some_blocks.blocks(probe, trial) if trial is not None else []
        stay = max((n for n in counted if processors <= n <= STAY * processors), default=0)
        if not stay or found not in (0, stay):
            return 0
        found = stay
    return found


def _beyond(length: int, blocks: int) -> int:
    """A length about as long, of which the last block but one has the last part: one of the few that run.

    Blocks that walk take parts in turns, some in every other turn from behind; so the number of turns is odd. Of 1,031
    rows another block has the last one, and all blocks would have to run.
    """
    return (-(-length // blocks) | 1) * blocks - 1 if blocks else length


def _first(probe: Probe, base: Trial, case: Case, axis: AxisName, length: int) -> Trial | None:
    """The call with that axis so long."""
    made = (_permitted(probe, grown, base.dtype, axis.letter) for grown, _ in _grown(probe.spec, case, axis, length))
    return next((trial for trial in made if trial is not None), None)


def _counted_by_grids(probe: Probe, base: Trial, case: Case, axis: AxisName) -> bool:
    """Whether that axis is to be as long as can be. In tier smoke, where calls are emulated, only one that a grid counts:
    a block that has all of another one takes minutes to compile, and one that walks along it seconds to emulate.
    """
    if not probe.emulated or probe.options.tier != "smoke":
        return True
    return bool(large_tensors.independent(probe.spec, case, axis, base.dtype))


def _bases(probe: Probe) -> list[Trial]:
    """The smallest trial of each rank with the usual choices, and with its own; where calls are emulated, of two ranks.

    A brief run has the highest rank alone, tier smoke the usual choices.
    """
    ranks: dict[int, Trial] = {}
    for trial in probe.sample(12):
        ranks.setdefault(max(x.dim() for x in trial.tensors.values()), trial)
    ordered = [ranks[rank] for rank in sorted(ranks, reverse=True)]
    usual = [_usual(probe, trial) for trial in ordered]
    if probe.emulated:
        return usual[: 1 if probe.brief else 2]
    ordered = [] if probe.options.tier == "smoke" else ordered
    return list({t.text: t for t in (*usual, *ordered)}.values())


def _usual(probe: Probe, trial: Trial) -> Trial:
    """The call with every choice at its default, if the variant can run it."""
    choices = {i.name: i.default for i in generate.choices(probe.spec)}
    if not choices or REQUIRED in choices.values():
        return trial
    case = generate.with_scalars(resize.case_of(probe, trial), choices)
    if generate.permitted(probe.spec, case, trial.dtype) is None:
        return trial
    made = probe.make(case, trial.dtype)
    return trial if probe.reasons(made) else made


def _long(probe: Probe, base: Trial, case: Case, axis: AxisName, length: int) -> bool:
    """One call with that axis so long, if the spec and the variant allow it; False: the emulator could say nothing."""
    for grown, axes in _grown(probe.spec, case, axis, length):
        alone = axes == (axis,)
        if (trial := _permitted(probe, grown, base.dtype, f"{axis} = {length}")) is None:
            continue
        slices = large_tensors.apart(probe.spec, case, axes, base.dtype) if axes and probe.emulated else {}
        dimensions = large_tensors.independent(probe.spec, case, axis, base.dtype) if alone else slices
        certain = bool(dimensions)
        dimensions = dimensions or _stretched(trial, length)
        if not (alone or dimensions) and length >= LONG:
            probe.skip(trial, f"{axis} is summed over, and an axis grows along: a reference would take too long")
            return False
        parts = axes if slices and slices == dimensions else ()
        with probe.judge(trial) as judge:
            _examine(judge, dimensions, parts, certain)
        return probe.records[-1].status != "skipped"
    probe.skip(
        base.changed(f"{axis} = {length}"),
        "the operator or the variant does not take such a shape, or its output or its work is too large",
    )
    return True


def _regular(probe: Probe, base: Trial, case: Case) -> None:
    """One tensor of 2^20 elements, and a call with all axes, or the last two, of a length that kernels like."""
    names = resize.axes(probe.spec, case)
    last = resize.names(probe.spec, case, probe.spec.leading.name)[-2:]
    short = {axis: min(n, SHORT) for axis, n in _lengths(probe.spec, case).items()}
    flat = all(name.letter == "..." for name in names)
    most = ELEMENTWISE if flat and _counted_by_grids(probe, base, case, names[-1]) else REGULAR[0]
    single = [dict.fromkeys(names, 1) | {names[-1]: most}] if flat else []
    square = [lengths for n in REGULAR for lengths in (dict.fromkeys(names, n), short | dict.fromkeys(last, n))]
    for tries in asked_less.shared_out(probe, (single, square)) if single else (square,):
        made = (_of_lengths(probe, base, case, lengths) for lengths in tries)
        if trial := next((t for t in made if t is not None and t.call.cost.flops <= FLOPS and t.size <= ROOM), None):
            with probe.judge(trial) as judge:
                _examine(judge, _stretched(trial, REGULAR[-1]), (), certain=False)


def _of_lengths(probe: Probe, base: Trial, case: Case, lengths: dict[AxisName, int]) -> Trial | None:
    changed = resize.fitted(probe.spec, resize.resized(probe.spec, case, lengths))
    return _permitted(probe, changed, base.dtype, f"regular axes: {max(lengths.values())}")


def _permitted(probe: Probe, case: Case, dtype: torch.dtype, note: str) -> Trial | None:
    """The call, if the spec and the variant take it and it is not too large, with indices at the ends of their axes."""
    call = generate.permitted(probe.spec, case, dtype)
    if call is None or any(x.numel() > ELEMENTS for x in call.arguments.values() if hasattr(x, "numel")):
        return None
    if any(torch.Size(output.shape(call)).numel() > OUTPUT for output in probe.spec.outputs) or call.cost.flops > WORK:
        return None
    trial = probe.make(case, dtype)
    return None if probe.reasons(trial) else trial.changed(note, **neighbouring_trials.at_ends(trial))


def _stretched(trial: Trial, length: int) -> dict[int, int]:
    """Outputs by number -> their first dimension that is about as long."""
    found: dict[int, int] = {}
    for number, output in enumerate(trial.spec.outputs):
        long = [d for d, n in enumerate(output.shape(trial.call)) if n > length // 8]
        found |= {number: long[0]} if long else {}
    return found


def _grown(spec: OpSpec, case: Case, axis: AxisName, length: int) -> Iterator[tuple[Case, tuple[AxisName, ...]]]:
    """The case with that axis long, and which axes are so long, () if one is twice as long: all others short, then as
    they are.

    Where no call is like that, one other axis grows along, as the heads with their groups, or one is twice the other.
    """
    own = _lengths(spec, case)
    short = {other: min(n, SHORT) for other, n in own.items()}
    alone = ((short | {axis: length}), {axis: length})
    both = ((m, n) for m, n in ((length, length), (2 * length, length), (length, 2 * length)))
    pairs = (
        (rest | {axis: m, other: n}, (axis, other) if m == n else ())
        for m, n in both
        for other in own
        if other != axis
        for rest in (short, {})
    )
    for lengths, axes in (*((lengths, (axis,)) for lengths in alone), *pairs):
        made = resize.resized(spec, case, lengths)
        fitted = resize.fitted(spec, made)
        yield made, axes
        if fitted is not made:
            yield fitted, ()


def _lengths(spec: OpSpec, case: Case) -> dict[AxisName, int]:
    shapes = case.shapes
    return {a: n for t in shapes for a, n in zip(resize.names(spec, case, t), shapes[t], strict=True)}


def _examine(judge: Judge, dimensions: dict[int, int], apart: tuple[AxisName, ...], certain: bool) -> None:
    """apart: the axes that are long, if each slice along them is a call of its own. certain: the last slices of the outputs
    follow from the last of the inputs; where they may be sums over all of them, a few blocks cannot show an error.
    """
    if not judge.probe.emulated:
        judge.accurate(judge.call())
        return
    seconds = SECONDS if dimensions else SECONDS_OF_SUMS
    try:
        with emulator.recorder() as launches:
            try:
                few = _some(judge, dimensions, apart, launches) if dimensions else 0.0
                if few is None:
                    return
                least = few * max(1.0, _turn_count(launches))
                if least > seconds:
                    raise Unsuitable(TOO_MANY)
                axis = judge.trial.note.partition(" = ")[0]
                if least > SOON and not asked_less.due(judge.probe, crc32(axis.encode())):
                    raise Unsuitable(IN_TURN)
            except Failed:
                if certain and len(launches) < 2:
                    raise
                # The last blocks of a kernel may have read what blocks of the one before, that did not run, were to write.
                seconds, judge.record.budget = SECONDS_OF_SUMS, 0.0
        judge.accurate(some_blocks.call(judge.probe, judge.trial, seconds, some=False))
    except Unsuitable as reason:
        judge.record.assertions = 0  # that what a few blocks have not written is well formed says nothing
        some_blocks.set_aside(judge, str(reason))


def _turn_count(launches: Sequence[Launch]) -> float:
    """How many times longer than a few blocks all take, at least.

    A specialised convolution of 512 x 512 pixels took 0.5 s with three of 132 blocks, and 3 s did not do for all. Of more
    blocks than stay side by side on a GPU each may take less time than their kernel took to compile.
    """
    sizes = [(math.prod(launch.grid), math.prod(launch.block)) for launch in launches]
    turns_of = [
        (blocks <= STAY * cards.emulated().processors, -(-blocks * threads // TOGETHER)) for blocks, threads in sizes
    ]
    stay = max((count for stays, count in turns_of if stays), default=0)
    more = max((count for stays, count in turns_of if not stays), default=0)
    return max(FULLER * stay if stay > 1 else 0.0, more / COMPILED)


def _some(
    judge: Judge, dimensions: dict[int, int], apart: tuple[AxisName, ...], launches: Sequence[Launch]
) -> float | None:
    """None if a few blocks write the last slices, and what they write is right; else the seconds that they took.

    launches: those of the call.
    """
    begin = time.process_time()
    trial, outputs = judge.trial, some_blocks.call(judge.probe, judge.trial, SECONDS)
    took = time.process_time() - begin
    judge.well_formed(outputs)
    if not launches:  # nothing was emulated, so all of it is there
        judge.accurate(outputs)
        return None
    if apart:
        trial, outputs = _written(trial, outputs, dimensions, apart)
    found = list[tuple[int, torch.Tensor, torch.Tensor]]()
    for number, dimension in dimensions.items():
        got, ref = outputs[number], trial.references[number]
        rows = (
            (ref != 0).movedim(dimension, 0).reshape(ref.shape[dimension], -1).any(1).nonzero()
        )  # some lie between all windows
        end = int(rows[-1]) if len(rows) else ref.shape[dimension] - 1
        last = [x.narrow(dimension, end, 1) for x in (got, ref)]
        if bool(some_blocks.unwritten(*last).all()):
            return took
        found.append((number, got, ref))
    bounds = trial.bounds(judge.probe.arithmetics(trial))
    for number, got, ref in found:
        some_blocks.judged(judge, trial, number, got, ref, bounds[number])
    return None


def _written(
    trial: Trial, outputs: tuple[torch.Tensor, ...], dimensions: dict[int, int], axes: tuple[AxisName, ...]
) -> tuple[Trial, tuple[torch.Tensor, ...]]:
    """The call and its outputs with the slices alone in which something was written, and the last one.

    The reference and the bounds of all others would take most of the time.
    """
    places = set[int]()
    for number, dimension in dimensions.items():
        rows = outputs[number].movedim(dimension, 0).unsqueeze(-1).flatten(1)
        places |= {len(rows) - 1, *(rows != 0).any(1).nonzero().flatten().tolist()}
    chosen = torch.tensor(sorted(places))
    case = trial.spec.case(trial.text)
    cut = dict(trial.tensors)
    for name in cut:
        for dimension, axis in enumerate(resize.names(trial.spec, case, name)):
            cut[name] = cut[name].index_select(dimension, chosen) if axis in axes else cut[name]
    kept = [outputs[i].index_select(dimensions[i], chosen) if i in dimensions else x for i, x in enumerate(outputs)]
    return trial.changed(trial.note, **cut), tuple(kept)


def _applies(backend: Backend, device: str) -> bool:
    """What runs on a CPU and is not emulated has no grids."""
    return backend.emulates or device == "cuda"


CHECK = Check(
    run=run,
    column="extent",
    applies=_applies,
    summary="axes longer than 65,535, which a grid cannot count in y and z, and large regular ones",
)
