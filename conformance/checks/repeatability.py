"""The same call gives the same bits, whatever memory it gets."""

from __future__ import annotations

import torch

from kernelmux.conformance.check import Check
from kernelmux.conformance.probe import Probe

TIMES = 3


def run(probe: Probe) -> None:
    for trial in probe.sample(2 if probe.emulated else 8):
        with probe.judge(trial) as judge:
            first = judge.call()
            kept = []
            for turn in range(1, TIMES):
                kept.append(torch.empty(1024 * turn + 7, device=probe.device))  # so that addresses differ
                for output, want, got in zip(trial.spec.outputs, first, judge.call(), strict=True):
                    judge.equal(f"{output.name} of call {turn + 1}", got, want)


CHECK = Check(run=run, column="repeat", summary="three equal calls give equal bits")
