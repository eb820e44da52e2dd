"""Special values that small calls do not have: whole blocks of a long line, results next to the largest number.

A line of 2,304 has its first, or its last, 1,280 elements at -inf, inf or NaN: a block of 1,024 with nothing else in it.

A result above the largest number of a 16-bit format by less than half a unit rounds to that number. The bound of the spec
allows an infinity there as well; what fp32 computes leaves no such choice, as long as its own error does not reach so far.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from kernelmux.conformance.inputs import special_numbers
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.variations import neighbouring_trials, resize
from kernelmux.registry.dtypes import UNIT
from kernelmux.registry.numerics import Bound
from kernelmux.registry.spec import Axis

if TYPE_CHECKING:
    from kernelmux.conformance.judging.probe import Judge, Probe

LINE, BLOCK = 2304, 1280  # elements of a line, and those of one value
ROWS = 4
NAMES = {"-inf": -math.inf, "inf": math.inf, "nan": math.nan}
# Two numbers whose sum, or whose product, lies between the largest number and half a unit above; by dtype.
PAIRS = {
    torch.float16: ((65504.0, 8.0), (261.0, 251.0)),
    torch.bfloat16: ((255 * 2.0**120, 2.0**118), (134 * 2.0**56, 244 * 2.0**57)),
}


def ask(probe: Probe, bases: list[Trial]) -> None:
    """Judge the variant on both; bases: small calls for which special values are defined."""
    for trial in long_lines(probe, bases[probe.options.seed % max(len(bases), 1) :][:1]):
        with probe.judge(trial) as judge:
            judge.accurate(judge.call())
    for trial, arranged in ((t, p) for base in bases for t, p in at_the_end(base)):
        with probe.judge(trial) as judge:
            outputs = judge.call()
            judge.accurate(outputs)
            _settled(judge, outputs, arranged)


def long_lines(probe: Probe, bases: list[Trial]) -> Iterator[Trial]:
    """A few long lines that are added up or compared, each with a block of one value, where the spec defines that."""
    for base in bases:
        case, undefined = resize.case_of(probe, base), base.spec.special.undefined
        names = [n for n in NAMES if n not in undefined and n.lstrip("-") not in undefined]
        leading = resize.names(base.spec, case, base.spec.leading.name)
        chosen = [base.call.arguments[i.name] for i in base.spec.scalars if isinstance(i, Axis)]
        along = chosen[0] if chosen and chosen[0] is not None else -1
        if not (names and leading):
            continue
        short = dict.fromkeys(resize.axes(base.spec, case), ROWS)
        long = neighbouring_trials.resized(probe, base, short | {leading[along]: LINE})
        if long is None or not (neighbouring_trials.terms(long.call) >= LINE or _compares(long)):
            continue
        for turn, name in enumerate(names):
            x = long.tensors[base.spec.leading.name].clone(memory_format=torch.contiguous_format)
            lines = x.movedim(along, -1).reshape(-1, LINE) if x.dim() > 1 else x[None]
            first = slice(None, BLOCK) if turn % 2 == 0 else slice(LINE - BLOCK, None)
            lines[0, first] = NAMES[name]
            lines[-1, slice(LINE - BLOCK, None) if turn % 2 == 0 else slice(None, BLOCK)] = NAMES[name]
            made = (
                lines.reshape(x.movedim(along, -1).shape).movedim(-1, along).contiguous() if x.dim() > 1 else lines[0]
            )
            yield long.changed(
                f"{name} in {base.spec.leading.name}: blocks of {BLOCK}", **{base.spec.leading.name: made}
            )


def _compares(trial: Trial) -> bool:
    """Whether elements of a line are compared: the result has fewer elements."""
    return any(math.prod(o.shape(trial.call)) * ROWS < trial.call.arguments[o.like].numel() for o in trial.spec.outputs)


def at_the_end(base: Trial) -> Iterator[tuple[Trial, int]]:
    """The call on zeros but for two numbers whose sum or product lies there, and the number of the output."""
    names = list(base.free)
    if special_numbers.undefined(base, "largest"):
        return
    for p, q in PAIRS.get(base.dtype, ()):
        for other in (*names[1:2], None):
            made = {name: torch.zeros_like(x, memory_format=torch.contiguous_format) for name, x in base.free.items()}
            first = made[names[0]].view(-1)
            if any(x.numel() < 2 for x in made.values()):
                continue
            first[0] = p
            (made[other].view(-1)[:1] if other else first[1:2]).fill_(q)
            trial = base.changed(f"{p:g} and {q:g}, all else 0: between the largest number and infinity", **made)
            for i, output in enumerate(trial.spec.outputs):
                if bool(_between(trial.references[i], output.dtype_of(trial.call)).any()):
                    yield trial, i
                    break


def _between(ref: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Which elements lie above the largest number of the dtype, and round to it."""
    if dtype not in PAIRS:
        return torch.zeros_like(ref, dtype=torch.bool)
    largest = torch.finfo(dtype).max
    return (ref.abs() > largest) & (ref.to(dtype).abs() == largest)


def _settled(judge: Judge, outputs: tuple[torch.Tensor, ...], number: int) -> None:
    """Between the two the largest number has to stand, unless the errors of fp32 reach half a unit above it."""
    trial, got = judge.trial, outputs[number]
    limit = trial.bounds(judge.probe.arithmetics(trial))[number]
    if limit is None:
        return
    ref, largest = trial.references[number], torch.finfo(got.dtype).max
    edge = largest * (1 + UNIT[got.dtype] / (2 - 2 * UNIT[got.dtype]))
    asked = _between(ref, got.dtype) & (ref.abs() + _without_rounding(limit) < edge)
    wrong = asked & (got.to(ref).abs() != largest)
    name, dtype = trial.spec.outputs[number].name, str(got.dtype).removeprefix("torch.")
    judge.require(
        not bool(wrong.any()),
        lambda: (
            f"{name}: expected {largest:g}, to which {float(ref[wrong][0]):.9g} rounds in {dtype},"
            f" got {float(got[wrong][0]):g}"
        ),
    )


def _without_rounding(limit: Bound) -> torch.Tensor:
    """What of a bound is not the rounding to the dtype of the output."""
    return limit.total - limit.rounding
