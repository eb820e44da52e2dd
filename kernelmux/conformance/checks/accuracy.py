"""Every case of the tier in every dtype (where a run is brief: in turn) stays within the error bound of the spec."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from kernelmux import emulator
from kernelmux.conformance.check import Check
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging import ahead
from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.variations import neighbouring_trials
from kernelmux.registry.call import dispatch
from kernelmux.registry.spec import Index
from kernelmux.registry.util import cards


def run(probe: Probe) -> None:
    for trial in ahead.trials(probe, chain.from_iterable(map(_with_ends, probe.all()))):
        with probe.judge(trial) as judge:
            judge.accurate(judge.call())
    if probe.coverage and probe.emulated:
        _on_one_multiprocessor(probe)


def _with_ends(trial: Trial) -> Iterator[Trial]:
    """The trial; where it has fewer indices than their axis has places, once more with indices of its ends."""
    yield trial
    indices = [(trial.tensors[t.name], t.domain) for t in trial.spec.tensors if t.name in trial.tensors]
    if any(isinstance(d, Index) and 0 < x.numel() < trial.call.axes[d.axis] for x, d in indices):
        yield trial.changed("indices of the ends of their axis", **neighbouring_trials.at_ends(trial))


def _on_one_multiprocessor(probe: Probe) -> None:
    """Where coverage is asked, of kernels whose blocks stay and walk on: what small cases give them to do there, the many
    multiprocessors of a GPU take at once. And of products in tiles that are larger where these are enough for all."""
    single = replace(cards.emulated(), processors=1)
    for trial in probe.all():
        usual = _launches(probe, trial)
        with cards.standing_for(single):
            other = _launches(probe, trial)
        if other != usual:  # launchers have forgotten the call, so that the judged one takes every branch
            with cards.standing_for(single), probe.judge(replace(trial, note="on one multiprocessor")) as judge:
                judge.accurate(judge.call())


def _launches(probe: Probe, trial: Trial) -> list[Any]:
    """The kernels of a call, as they are compiled and launched; they are not run."""
    with probe.environment(), emulator.recorder(run=False) as launches:
        dispatch.call(trial.spec, trial.values, probe.label)
    return [(w.kernel, w.grid, w.block, w.shared, w.recipe and w.recipe.key) for w in launches]


CHECK = Check(run=run, column="accur", summary="within the error bound on every case, dtype and input distribution")
