"""A call works on torch's current stream: between what was queued there before it and what is queued there after it.

Work on another stream that is not ordered with the current one reads inputs that are not there yet, or that the caller
has overwritten since, or leaves results that the next operation on the current stream does not see.
"""

from __future__ import annotations

from typing import Any

import torch

from kernelmux.candidate import implementation as candidate
from kernelmux.candidate.allocations import Guard
from kernelmux.candidate.gpu.order import DELAY, LATE
from kernelmux.conformance.check import Check
from kernelmux.conformance.judging import ahead
from kernelmux.conformance.judging.probe import Failed, Judge, Probe
from kernelmux.registry.backend import Backend
from kernelmux.registry.call import dispatch

ELSEWHERE = "work is on another stream, which is not ordered with the current one"


def run(probe: Probe) -> None:
    if probe.spec.hosted:
        probe.skip_all("its input is in host memory, which the host itself may read")
        return
    for trial in probe.sample(4):
        with probe.judge(trial) as judge:
            judge.call()  # compiled and planned, so that only launches remain
            _late_producer(judge)


def _late_producer(judge: Judge) -> None:
    """Inputs are poison until a side stream, after a delay, fills them in, and again right behind the call.

    New memory holds poison. The results are copied on the side stream as soon as the call has returned.
    """
    if process := candidate.process_of(judge.probe.implementation.fn):
        with judge.probe.environment():
            given = ahead.arguments(judge.probe, process, [judge.trial.values])
            found = process.calls(given, order=LATE)
        _judged(judge, found[0])
        return
    trial, side = judge.trial, torch.cuda.Stream()  # type: ignore[no-untyped-call]
    tensors = {name: torch.empty_like(x) for name, x in trial.tensors.items()}
    for x in tensors.values():
        x.fill_(torch.nan if x.is_floating_point() else -1)
    placed = trial.changed("", **tensors)
    torch.cuda.synchronize()
    with torch.cuda.stream(side), judge.probe.environment():
        torch.cuda._sleep(DELAY)  # type: ignore[no-untyped-call]
        for name, x in tensors.items():
            x.copy_(trial.tensors[name], non_blocking=True)
        with Guard():
            result = dispatch.call(trial.spec, placed.values, judge.probe.label)
        seen = tuple(out.clone() for out in (result if isinstance(result, tuple) else (result,)))
        for x in tensors.values():
            x.fill_(torch.nan if x.is_floating_point() else -1)
    torch.cuda.synchronize()
    _judged(judge, seen)


def _judged(judge: Judge, result: Any) -> None:
    try:
        judge.accurate(result if isinstance(result, tuple) else (result,))
    except Failed as failure:
        judge.accurate(judge.call())  # which waits for the whole device
        raise Failed(f"{ELSEWHERE}: right once the whole device is idle, but not before; {failure}") from None


def _applies(backend: Backend, device: str) -> bool:
    return device == "cuda"


CHECK = Check(
    run=run, column="stream", applies=_applies, summary="runs on torch's current stream, after what is queued there"
)
