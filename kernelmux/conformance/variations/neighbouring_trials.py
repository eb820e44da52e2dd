"""Trials near another one: other values, other lengths, the case in which an input is large."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from kernelmux import emulator
from kernelmux.conformance.inputs import generate
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.variations import resize
from kernelmux.conformance.variations.resize import AxisName
from kernelmux.registry.cases import Case
from kernelmux.registry.spec import REQUIRED, Call, Index, Scalar

if TYPE_CHECKING:
    from kernelmux.conformance.judging.probe import Probe

SQUARE = 8  # the length of all axes at once
LARGE = 2**20  # elements
ODD = 11  # a length that no case has


def again(probe: Probe, trial: Trial, turn: int) -> Trial:
    """The trial with other random values; itself for turn 0, or if it is of no case."""
    case = next((c for c in probe.cases if c.name == trial.case), None)
    return probe.make(case, trial.dtype, trial.seed + turn) if case and turn else trial


def resized(probe: Probe, trial: Trial, lengths: dict[AxisName, int]) -> Trial | None:
    """The trial with other lengths of some axes; None if the operator or the variant does not take such a call."""
    case = resize.resized(probe.spec, resize.case_of(probe, trial), lengths)
    if generate.permitted(probe.spec, case, trial.dtype) is None:
        return None
    made = probe.make(case, trial.dtype, trial.seed)
    return None if probe.reasons(made) else made


def otherwise(probe: Probe, trial: Trial) -> Trial:
    """The trial with other values of its scalars, as far as such a call is possible."""
    values: dict[str, Any] = {}
    for item in (i for i in probe.spec.scalars if isinstance(i, Scalar)):
        own = trial.values[probe.spec.inputs.index(item)]
        others = [v for v in (item.default, *generate.pool(item)) if v not in (own, None, REQUIRED)]
        values |= {item.name: others[0]} if others else {}
    case = generate.together(probe.spec, resize.case_of(probe, trial), values)
    if not values or generate.permitted(probe.spec, case, trial.dtype) is None:
        return trial
    made = probe.make(case, trial.dtype, trial.seed)
    return trial if probe.reasons(made) else made


def axes(probe: Probe, trial: Trial) -> list[AxisName]:
    """The axes of a trial's tensors."""
    return resize.axes(probe.spec, resize.case_of(probe, trial))


def special(trial: Trial) -> bool:
    """Whether its values are of a special kind: many may be zero, or sums of them exact."""
    return "inputs=" in trial.text


@lru_cache(maxsize=1)
def slow(probe: Probe) -> bool:
    """Whether a call runs kernels on the emulator: a backend that may do so can have variants of torch's operators."""
    trials = probe.sample(1) if probe.emulated else []
    with emulator.recorder(run=False) as launches:
        for trial in trials:
            probe.call(tuple(v.clone() if isinstance(v, torch.Tensor) else v for v in trial.values))
    return bool(launches)


def square(probe: Probe, trial: Trial) -> Trial | None:
    """The trial with all axes of one length, if it has several."""
    found = axes(probe, trial)
    return resized(probe, trial, dict.fromkeys(found, SQUARE)) if len(found) > 1 else None


def unseen(probe: Probe, trial: Trial, turn: int) -> Trial | None:
    """The trial with a length of one axis that no other trial has."""
    made = (resized(probe, trial, {axis: ODD + 2 * turn}) for axis in axes(probe, trial))
    return next((m for m in made if m is not None), None)


def largest(probe: Probe, most: int = 2**62) -> Iterator[Trial]:
    """The cases with the most elements of each input (up to `most`), then those with the longest axes, each once.

    Each in the first dtype in which the variant can run it.
    """
    filled = [c for c in probe.cases if all(0 < torch.Size(s).numel() <= most for s in c.shapes.values())]
    sizes = [lambda c, name=t.name: torch.Size(c.shapes.get(name, (0,))).numel() for t in probe.spec.tensors]
    places = {(name, d) for c in filled for name, shape in c.shapes.items() for d in range(-len(shape), 0)}
    lengths = [lambda c, name=n, d=d: ((0,) * -d + tuple(c.shapes.get(name, ())))[d] for n, d in sorted(places)]
    taken = set()
    for measure in (*sizes, *lengths):
        found = next(able(probe, sorted(filled, key=measure, reverse=True)), None)
        if found is not None and found.text not in taken:
            taken.add(found.text)
            yield found


def large(probe: Probe, trials: list[Trial]) -> Iterator[Trial]:
    """These trials with an axis so long that a tensor has 2^20 elements, and none more than four times as many."""
    for trial in trials:
        own = max(x.numel() for x in trial.tensors.values())
        for axis in axes(probe, trial):
            case = resize.case_of(probe, trial)
            length = next(n for t in case.shapes for n, a in _axes_of(probe, case, t) if a == axis)
            made = resized(probe, trial, {axis: LARGE * length // max(own, 1) + length})
            sizes = [x.numel() for x in made.tensors.values()] if made else []
            if made and LARGE <= max(sizes) and made.size <= 8 * LARGE:
                yield made


def _axes_of(probe: Probe, case: Case, tensor: str) -> Iterator[tuple[int, AxisName]]:
    return zip(case.shapes[tensor], resize.names(probe.spec, case, tensor), strict=True)


def able(probe: Probe, cases: list[Case]) -> Iterator[Trial]:
    """The cases that the variant can run, each in the first dtype."""
    for case in cases:
        made = (probe.make(case, dtype) for dtype in probe.options.dtypes_of(probe.spec, case))
        yield from islice((trial for trial in made if not probe.reasons(trial)), 1)


def at_ends(trial: Trial) -> dict[str, torch.Tensor]:
    """Its tensors of indices, in them the last two places of their axis and the middle, which are hardly ever drawn.

    Of more than three one is a value that is no place, such as that of ignored rows.
    """
    found: dict[str, torch.Tensor] = {}
    domains = {t.name: t.domain for t in trial.spec.tensors if t.name in trial.tensors}
    for name, domain in domains.items():
        if not isinstance(domain, Index):
            continue
        made, n = trial.tensors[name].clone(memory_format=torch.contiguous_format), trial.call.axes[domain.axis]
        for place, value in ((made.numel() // 2, n // 2), (-1, n - 2), (0, n - 1)):  # of a single index the last counts
            if made.numel() and value >= 0:
                made.view(-1)[place] = value
        if domain.extra and made.numel() > 3:
            made.view(-1)[1] = trial.call.scalars[domain.extra[0]]
        found[name] = made
    return found


def terms(call: Call) -> int:
    """Terms of the longest sum of a call."""
    return max(int(error.terms(call.axes)) for error in call.spec.errors)


def terms_of_all(call: Call) -> int:
    """Terms of a sum times elements of the outputs."""
    return terms(call) * sum(math.prod(output.shape(call)) for output in call.spec.outputs)


def work(call: Call) -> float:
    """Operations of a call. Kernels of images go through the whole filter at each pixel, also where that lies outside.

    A gradient of 2 x 2 pixels with a filter of 2 x 1,024 makes an image of 3 x 1,025, each of whose pixels is a sum over
    all of the filter: 380 times what the spec counts, and 15 s on the emulator.
    """
    images = any(output.order for output in call.spec.outputs)
    return max(call.cost.flops, 2 * terms_of_all(call) if images else 0)
