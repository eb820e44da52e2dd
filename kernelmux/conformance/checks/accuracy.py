"""Every case of the tier in every dtype (where a run is brief: in turn) stays within the error bound of the spec."""

from __future__ import annotations

from kernelmux.conformance.check import Check
from kernelmux.conformance.judging import ahead
from kernelmux.conformance.judging.probe import Probe


def run(probe: Probe) -> None:
    for trial in ahead.trials(probe, probe.all()):
        with probe.judge(trial) as judge:
            judge.accurate(judge.call())


CHECK = Check(run=run, column="accur", summary="within the error bound on every case, dtype and input distribution")
