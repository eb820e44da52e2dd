"""A call can be captured in a CUDA graph; a replay reads the inputs as they are then and writes the same outputs."""

from __future__ import annotations

import torch

from kernelmux.candidate import implementation as candidate
from kernelmux.candidate.errors import CandidateError
from kernelmux.candidate.gpu.order import CAPTURED, Uncapturable
from kernelmux.candidate.process import CandidateProcess
from kernelmux.conformance.check import Check
from kernelmux.conformance.judging import ahead
from kernelmux.conformance.judging.probe import Judge, Probe
from kernelmux.conformance.variations import neighbouring_trials
from kernelmux.registry.backend import Backend
from kernelmux.registry.call import dispatch

REPLAYS = 2


def run(probe: Probe) -> None:
    if probe.spec.hosted:
        probe.skip_all("its input is in host memory, which a capture does not order")
        return
    for trial in probe.sample(4):
        with probe.judge(trial) as judge:
            _replayed(judge, probe)


def _replayed(judge: Judge, probe: Probe) -> None:
    """Capture with one set of inputs, replay with others."""
    trial = judge.trial
    if process := candidate.process_of(judge.probe.implementation.fn):
        _of_candidate(judge, probe, process)
        return
    inputs = {name: x.clone() for name, x in trial.tensors.items()}
    placed = trial.changed("", **inputs)
    judge.call(*placed.values)  # compiling and loading are not for captures
    graph = torch.cuda.CUDAGraph()
    with probe.environment(), torch.cuda.graph(graph):
        result = dispatch.call(trial.spec, placed.values, probe.label)
    outputs = result if isinstance(result, tuple) else (result,)
    for turn in range(1, REPLAYS + 1):
        other = neighbouring_trials.again(probe, trial, turn)
        for name, x in inputs.items():
            x.copy_(other.tensors[name])
        graph.replay()
        torch.cuda.synchronize()
        Judge(probe, other, judge.record).accurate([out.clone() for out in outputs])


def _of_candidate(judge: Judge, probe: Probe, process: CandidateProcess) -> None:
    """That a function of another process cannot be captured is a remark: what it computes may be right."""
    trial = judge.trial
    each = [trial, *(neighbouring_trials.again(probe, trial, turn) for turn in range(1, REPLAYS + 1))]
    try:
        with probe.environment():
            given = ahead.arguments(probe, process, [t.values for t in each])
            results = process.calls(given, order=CAPTURED)
    except CandidateError as error:
        if not error.cause.endswith(Uncapturable.__name__):
            raise
        judge.accurate(judge.call())
        judge.remark(f"cannot be captured in a CUDA graph: {error}")
        return
    for other, result in zip(each, results, strict=True):
        Judge(probe, other, judge.record).accurate(result if isinstance(result, tuple) else (result,))


def _applies(backend: Backend, device: str) -> bool:
    return device == "cuda"


CHECK = Check(
    run=run, column="graph", applies=_applies, summary="can be captured in a CUDA graph and replayed with other inputs"
)
