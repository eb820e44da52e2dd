"""NaN, infinities, -0, subnormal and the largest numbers: alone, in all inputs at once, and on a background of zeros.

The values around the breakpoints of piecewise formulas (`breakpoints`) come first.

Besides the bound, bits are compared where the spec defines them: in operators that move values; in those that are exact
but for one rounding, which is to the nearest number, of two to the even one; and the sign of zero where an elementwise
operator is given zeros. A sign that comes from an underflow is not judged, nor what `SpecialValues.undefined` names.
Indices that point beyond their axis are asked as well: nothing is read there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import cycle

import torch

from kernelmux.conformance.check import Check
from kernelmux.conformance.inputs import generate, special_numbers, trials
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging import ahead
from kernelmux.conformance.judging.probe import Judge, Probe
from kernelmux.conformance.variations import breakpoints, neighbouring_trials, resize, special_extremes
from kernelmux.registry.dtypes import smallest
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import SPECIAL, Axis, Computed, Index, OpSpec, Scalar, exact_arguments

PAYLOAD = "nan with a payload"  # for operators that move values: every bit of theirs arrives
ON_ZEROS = ("nan", "-0", "subnormal")  # what shows best where all else is 0: 0 * NaN, -0 + -0, sums that stay tiny
OPPOSED = ("inf", "largest")  # what meets a number of the other sign, and another large one
LEAST = 64  # elements of the largest tensor
STRAY_CALLS = 2  # calls with indices beyond their axis
TERMS = 2051  # of the longest sums of integers: of products of 127, more than 2^24
FEW = 5  # rows of the call whose other axes have length one
Tensors = dict[str, torch.Tensor]


def run(probe: Probe) -> None:
    breakpoints.ask(probe)
    bases = _bases(probe)
    for trial in ahead.trials(probe, _all_planted(probe, bases)):
        with probe.judge(trial) as judge:
            outputs = judge.call()
            judge.well_formed(outputs)
            judge.accurate(special_numbers.within_range(trial, outputs))
            _bits(judge, outputs)
    special_extremes.ask(probe, bases if probe.options.tier != "smoke" else [])
    _ask_strays(probe, bases)
    for trial in _long_sums(probe) if probe.options.tier != "smoke" else ():
        if probe.able(trial):
            with probe.judge(trial) as judge:
                judge.accurate(judge.call())


def _all_planted(probe: Probe, bases: list[Trial]) -> Iterator[Trial]:
    """Every special value in small calls that the variant can run."""
    names = (*SPECIAL, *((PAYLOAD,) if moves(probe.spec) else ()))
    quick = probe.device.type == "cpu" and not probe.emulated  # a call that a GPU finishes is waited for
    for turn, base in enumerate([*bases, *_single_terms(probe), *_zeros(probe)]):
        for name in names if not _zeroed(base) else ("nan", "inf"):
            reason = special_numbers.undefined(base, name)
            for trial in planted(base, name, thorough=turn == 0 or (turn < len(bases) and quick)):
                if reason:
                    probe.skip(trial, f"{name}: {reason}")
                elif probe.able(trial):
                    yield trial


def _ask_strays(probe: Probe, bases: list[Trial]) -> None:
    """An index beyond its axis gives what the reference says."""
    for base in bases[:STRAY_CALLS]:
        for trial in (*strays(base), *by_default(probe, base), *foreign(base)):
            if probe.able(trial):
                with probe.judge(trial) as judge:
                    judge.accurate(judge.call())


def strays(base: Trial) -> Iterator[Trial]:
    """The call with indices just before and just beyond their axis, and far from it, at three places of each."""
    indices = {t.name: t.domain for t in base.spec.tensors if isinstance(t.domain, Index) and t.name in base.tensors}
    for name, domain in indices.items():
        extra = [base.call.scalars[scalar] for scalar in domain.extra]
        limits = torch.iinfo(base.tensors[name].dtype)
        for value in (-1, base.call.axes[domain.axis], max(-(2**33) - 7, limits.min), min(2**40, limits.max)):
            if value not in extra:
                yield _with_index(base, name, value)


def by_default(probe: Probe, base: Trial) -> Iterator[Trial]:
    """The call with an index that is special by default, such as one that is ignored, where another one is."""
    other = neighbouring_trials.otherwise(probe, base)
    for tensor in other.spec.tensors:
        if isinstance(tensor.domain, Index) and tensor.name in other.tensors:
            for scalar in tensor.domain.extra:
                value = other.spec.signature.parameters[scalar].default
                if isinstance(value, int) and value != other.call.scalars[scalar]:
                    yield _with_index(other, tensor.name, value)


def _with_index(base: Trial, name: str, value: int) -> Trial:
    """The call with this index at three places of a tensor."""
    places = list(positions(base.tensors[name]).values())
    made = base.tensors[name].clone(memory_format=torch.contiguous_format)
    made.view(-1)[places] = value
    laid = special_numbers.lying(made, base.tensors[name])
    return base.changed(f"{value} in {name}: {', '.join(map(str, places))}", **{name: laid})


def foreign(base: Trial) -> Iterator[Trial]:
    """The call with integers that no other call has saved: each that of its neighbour, and all before the first."""
    saved = {t.name for t in base.spec.tensors if isinstance(t.domain, Computed)} & base.tensors.keys()
    for name in (n for n in saved if not base.tensors[n].is_floating_point() and base.tensors[n].numel()):
        x = base.tensors[name]
        yield base.changed(f"{name}: that of the neighbour", **{name: special_numbers.lying(x.roll(1, -1), x)})
        yield base.changed(f"{name}: -1 everywhere", **{name: torch.full_like(x, -1)})


def _long_sums(probe: Probe) -> Iterator[Trial]:
    """Sums of 8-bit integers as large as they get: in fp32 those beyond 2^24 would be rounded."""
    if any(dtype.is_floating_point for dtype in probe.spec.dtypes):
        return
    for base in probe.sample(1, where=_widens):
        case = resize.case_of(probe, base)
        axis = resize.names(base.spec, case, base.spec.leading.name)[-1]
        if long := neighbouring_trials.resized(
            probe, base, dict.fromkeys(resize.axes(base.spec, case), FEW) | {axis: TERMS}
        ):
            for ends in ((127, 127), (-128, 127)):
                filled = zip(long.tensors.items(), cycle(ends), strict=False)
                made = {name: torch.full_like(x, end) for (name, x), end in filled}
                yield long.changed(f"all {ends[0]} and {ends[1]}, {axis} = {TERMS}", **made)


def _widens(trial: Trial) -> bool:
    """Whether integers of 8 bits give wider ones: they are added."""
    inputs = [x.dtype for x in trial.tensors.values()]
    wide = [o.dtype_of(trial.call) for o in trial.spec.outputs]
    return set(inputs) == {torch.int8} and any(not d.is_floating_point and d.itemsize > 1 for d in wide)


def _bases(probe: Probe) -> list[Trial]:
    """Small calls of every kind in every floating dtype; where they are emulated one in each dtype, of kinds in turn, and
    another of images that lie channels-last.
    """
    dtypes = [d for d in probe.options.dtypes_of(probe.spec) if d.is_floating_point]
    found = []
    for turn, dtype in enumerate(dtypes):
        cases = [*probe.kinds(LEAST, dtype), *probe.small_cases(LEAST)[:6]]
        allowed = [c for c in dict.fromkeys(cases) if dtype in probe.options.dtypes_of(probe.spec, c)]
        made = [probe.make(c, dtype) for c in allowed]
        able = [t for t in made if special_numbers.defined(t) and not probe.reasons(t)]
        able = [t for t in able if not (probe.emulated and _zeroed(t))]
        if probe.emulated:
            last = [t for t in able if resize.case_of(probe, t).channels_last]
            others = [t for t in able if t not in last]
            able = ([others[turn % len(others)]] if others else []) + last[:1]
        found += able
    return found or probe.sample(1, least=LEAST, where=special_numbers.defined)


def _single_terms(probe: Probe) -> list[Trial]:
    """A few rows of one element each: a sum of one term is left out, or taken for known, by more than one kernel."""
    spec = probe.spec
    letters = generate.letters(spec)
    lead = (FEW, 1) if any(t.flat for t in spec.tensors) else (FEW,)
    case = generate.case_of_lengths(spec, dict.fromkeys(letters, 1), lead)
    dtypes = [d for d in probe.options.dtypes_of(spec) if d.is_floating_point] if not probe.options.cases else []
    axes = {i.name: -1 for i in spec.scalars if isinstance(i, Axis)}
    along = generate.with_scalars(case, axes)
    made = (probe.make(along, d) for d in dtypes if generate.permitted(spec, along, d))
    able = [t for t in made if special_numbers.defined(t) and not probe.reasons(t)]
    return able[probe.options.seed % len(able) :][:1] if able and probe.emulated else able


def _zeros(probe: Probe) -> list[Trial]:
    """A small call with each number at 0, where a spec allows that: 0 * NaN and 0 * inf are NaN."""
    scalars = [i for i in probe.spec.scalars if isinstance(i, Scalar) and i.type is float]
    numbers = [i.name for i in scalars if 0.0 in generate.pool(i)]
    case = next(iter(probe.kinds(LEAST)), None)
    if case is None or probe.options.cases:
        return []
    dtypes = probe.options.dtypes_of(probe.spec, case)[-1:]
    made = [probe.make(generate.with_scalars(case, {n: 0.0}), d) for n in numbers for d in dtypes]
    return [t for t in made if special_numbers.defined(t) and not probe.reasons(t)]


def _zeroed(trial: Trial) -> bool:
    """Whether a number is 0: an eps of 0 lets the squares of small numbers underflow to 0 / 0."""
    return any(isinstance(v, float) and v == 0 for v in trial.call.scalars.values())


# --- bits -------------------------------------------------------------------------------------------------


def moves(spec: OpSpec) -> bool:
    """Whether the operator moves values, and neither computes nor compares any."""
    moved = (model.roundings == 0 and not model.chosen for model in spec.errors)
    return all(moved) and all(output.dtype is None for output in spec.outputs)


def _bits(judge: Judge, outputs: tuple[torch.Tensor, ...]) -> None:
    trial = judge.trial
    if moves(trial.spec):
        for output, got, want in zip(trial.spec.outputs, outputs, _moved(trial), strict=True):
            judge.equal(f"the bits of {output.name}", trials.bits(got), want)
        return
    for i, (output, got) in enumerate(zip(trial.spec.outputs, outputs, strict=True)):
        want = trial.references[i].to(got.dtype)
        judged = settled(trial, i)
        judge.equal(output.name, torch.where(judged, got, 0), torch.where(judged, want, 0))


def _moved(trial: Trial) -> tuple[torch.Tensor, ...]:
    """The reference on the bits of the inputs: it moves them as it moves numbers."""
    arguments = [
        trials.bits(v.to(trial.call.device)) if isinstance(v, torch.Tensor) else v
        for v in trial.call.arguments.values()
    ]
    result = trial.spec.reference(*arguments)
    return result if isinstance(result, tuple) else (result,)


def settled(trial: Trial, output: int) -> torch.Tensor:
    """Which elements of an output have bits that the spec settles."""
    model, ref = trial.spec.errors[output], trial.references[output]
    if _exact(trial, model):
        return ~ref.isnan() & ((ref.abs() < smallest(trial.dtype) / 2) if model.flushes else True)
    inputs = list(trial.tensors.values())
    if "-0" in trial.spec.special.undefined or not _elementwise(trial.spec):
        return torch.zeros_like(ref, dtype=torch.bool)
    return (ref == 0) & torch.stack([x == 0 for x in inputs]).all(0)


def _exact(trial: Trial, model: ErrorModel) -> bool:
    """Whether nothing is lost but by the one rounding to the dtype of the output, whatever the inputs."""
    ones = (torch.ones_like(v) if isinstance(v, torch.Tensor) else v for v in exact_arguments(trial.call))
    return model.roundings == 1 and not bool(model.magnitude(*ones).any())


def _elementwise(spec: OpSpec) -> bool:
    plain = all(t.flat for t in spec.tensors) and all(o.dims == "like" for o in spec.outputs)
    return plain and not any(isinstance(i, Axis) for i in spec.inputs)


# --- what is planted --------------------------------------------------------------------------------------


def opposed(name: str, dtype: torch.dtype, turn: int) -> tuple[float, ...]:
    """Two numbers of both signs for the first tensor of a call, others of that size for the next.

    Of the second tensor the first is one that does not differ in sign, where it is finite, so that sums overflow.
    """
    large = float(torch.finfo(dtype).max)
    found = (math.inf, -math.inf, math.inf) if name == "inf" else (large, -large, 0.75 * large)
    return found[-turn % 3 :] + found[: -turn % 3]


def planted(base: Trial, name: str, thorough: bool = True) -> Iterator[Trial]:
    """The call with the value in its tensors: in all together, and if `thorough` in each in turn.

    Indices have no such values, and tensors that are computed from others follow these.
    """
    tensors = base.free
    zeros = {t: torch.zeros_like(x) for t, x in tensors.items()}
    several = len(tensors) > 1
    if several or not thorough:
        yield _with(base, tensors, list(tensors), name, "")
    if name == "-inf" or (name == "nan" and _finds(base.spec)):
        yield from _whole_lines(base, name)
    if name in OPPOSED:
        yield from _opposed(base, name)
    if name in ON_ZEROS and several:
        yield _with(base, zeros, list(tensors), name, ", all else 0")
    if name == "largest":  # so that every sum overflows, along whichever axis it goes
        for tensor, x in list(tensors.items())[: None if thorough else 1]:
            full = torch.full_like(x, special_numbers.values_of(name, x.dtype)[0])
            yield base.changed(f"{name} in {tensor}: everywhere", **{tensor: full})
    for tensor, x in tensors.items() if thorough else ():
        yield _with(base, tensors, [tensor], name, "")
        if name in ON_ZEROS:
            background = {**zeros, tensor: x} if name == "nan" else zeros
            yield _with(base, background, [tensor], name, ", all else 0")
        if name == "nan":
            yield from _single(base, tensor, name)


def _finds(spec: OpSpec) -> bool:
    """Whether an output says where something stands, so that of several NaN one is the answer."""
    return any(isinstance(o.dtype, torch.dtype) and not o.dtype.is_floating_point for o in spec.outputs)


def _first_line(base: Trial, x: torch.Tensor) -> torch.Tensor:
    """The first elements along the axis that the call names, or along the last one."""
    chosen = [base.call.arguments[i.name] for i in base.spec.scalars if isinstance(i, Axis)]
    line = x.movedim(chosen[0], -1) if chosen and chosen[0] is not None else x
    while line.dim() > 1:
        line = line[0]
    return line


def _whole_lines(base: Trial, name: str) -> Iterator[Trial]:
    """The value all along a line of each tensor by itself."""
    for tensor, x in base.free.items():
        if x.dim() > 1:
            made = x.clone(memory_format=torch.contiguous_format)
            # Copied and not filled: a format without infinities takes none as a number.
            _first_line(base, made).copy_(torch.tensor(special_numbers.values_of(name, x.dtype)[0], device=x.device))
            yield base.changed(f"{name} in {tensor}: the whole first line", **{tensor: special_numbers.lying(made, x)})


def _opposed(base: Trial, name: str) -> Iterator[Trial]:
    """Two that meet: at the ends of one line, and at one place of two tensors."""
    made = {tensor: x.clone(memory_format=torch.contiguous_format) for tensor, x in base.free.items()}
    for turn, x in enumerate(made.values()):
        line = _first_line(base, x)
        ends = opposed(name, x.dtype, turn)
        line.view(-1)[:1], line.view(-1)[-1:] = ends[0], ends[1]
    laid = {tensor: special_numbers.lying(x, base.tensors[tensor]) for tensor, x in made.items()}
    yield base.changed(f"opposed {name} in {', '.join(made)}: both ends of the first line", **laid)


def _single(base: Trial, tensor: str, name: str) -> Iterator[Trial]:
    """The value at each position of one tensor by itself."""
    x = base.tensors[tensor]
    spots = positions(x)
    for place, index in spots.items() if len(spots) > 1 else ():
        yield base.changed(
            f"{name} in {tensor}: {place}", **{tensor: _plant(x, name, {place: range(index, index + 1)})}
        )


def positions(x: torch.Tensor) -> dict[str, int]:
    """Flat positions: the first and the last element, and one at a power of two in the middle row."""
    n = x.shape[-1] if x.dim() else 1
    rows = x.numel() // max(n, 1)
    edge = (rows // 2) * n + (1 << max(n - 1, 1).bit_length() - 1) % n
    named = {"first": 0, "last": x.numel() - 1, "tile edge": edge}
    return {name: p for i, (name, p) in enumerate(named.items()) if p not in list(named.values())[:i]}


def _with(base: Trial, background: Tensors, chosen: list[str], name: str, note: str) -> Trial:
    """The value at three positions of each chosen tensor, on the tensors of `background`."""
    made = dict(background)
    for tensor in chosen:
        spots = positions(made[tensor])
        made[tensor] = _plant(made[tensor], name, {place: range(p, p + 1) for place, p in spots.items()})
    return base.changed(f"{name} in {', '.join(chosen)}: {', '.join(positions(made[chosen[0]]))}{note}", **made)


def _plant(x: torch.Tensor, name: str, places: dict[str, range]) -> torch.Tensor:
    """A copy of x with the value in these flat places."""
    changed = x.clone(memory_format=torch.contiguous_format).view(-1)
    values = cycle((math.nan,) if name == PAYLOAD else special_numbers.values_of(name, x.dtype))
    for index, value in zip((i for place in places.values() for i in place), values, strict=False):
        changed[index] = value
        if name == PAYLOAD:
            _set_payload(changed, index)
    return special_numbers.lying(changed.view(x.shape), x)


def _set_payload(flat: torch.Tensor, index: int) -> None:
    """A negative, signalling NaN whose lowest bits are set: what arithmetic, or another format on the way, would change."""
    info, raw = torch.finfo(flat.dtype), flat.view(trials.RAW[flat.element_size()])
    infinity = torch.tensor(-math.inf, dtype=flat.dtype).view(raw.dtype).item()
    raw[index] = infinity + (3 if info.bits == 16 else 0x1235)


CHECK = Check(
    run=run, column="values", summary="NaN, infinities, -0, subnormal and largest numbers give what the reference gives"
)
