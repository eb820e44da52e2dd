"""Every case of the tier in every dtype (where a run is brief: in turn) stays within the error bound of the spec."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kernelmux import emulator
from kernelmux.conformance.check import Check
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging import ahead
from kernelmux.conformance.judging.probe import Probe
from kernelmux.registry.call import dispatch
from kernelmux.registry.util import cards


def run(probe: Probe) -> None:
    for trial in ahead.trials(probe, probe.all()):
        with probe.judge(trial) as judge:
            judge.accurate(judge.call())
    if probe.coverage and probe.emulated:
        _on_one_multiprocessor(probe)


def _on_one_multiprocessor(probe: Probe) -> None:
    """Where coverage is asked, of kernels whose blocks stay and walk on: what small cases give them to do there, the many
    multiprocessors of a GPU take at once."""
    single = replace(cards.emulated(), processors=1)
    for trial in probe.all():
        usual = _launches(probe, trial)
        with cards.standing_for(single):
            if _launches(probe, trial) != usual:
                with probe.judge(replace(trial, note="on one multiprocessor")) as judge:
                    judge.accurate(judge.call())


def _launches(probe: Probe, trial: Trial) -> list[Any]:
    """The kernels and grids of a call, which are not run."""
    with probe.environment(), emulator.recorder(run=False) as launches:
        dispatch.call(trial.spec, trial.values, probe.label)
    return [(launch.kernel, launch.grid) for launch in launches]


CHECK = Check(run=run, column="accur", summary="within the error bound on every case, dtype and input distribution")
