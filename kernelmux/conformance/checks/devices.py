"""A call works on the GPU of its tensors, whichever is current, and leaves the current one as it was."""

from __future__ import annotations

import torch

from kernelmux.conformance.check import Check
from kernelmux.conformance.judging.probe import Judge, Probe
from kernelmux.registry.backend import Backend
from kernelmux.registry.call import dispatch
from kernelmux.registry.interop import autograd


def run(probe: Probe) -> None:
    if (count := torch.cuda.device_count()) < 2:
        probe.skip_all(f"needs two GPUs, this machine has {count}")
        return
    if probe.spec.hosted:
        probe.skip_all("its input is in host memory, and the current GPU is where it runs")
        return
    for trial in probe.sample(2):
        with probe.judge(trial) as judge:
            _elsewhere(judge)


def _elsewhere(judge: Judge) -> None:
    """The tensors on another GPU than the current one: the result is there, and right; so is its gradient."""
    trial, here = judge.trial, torch.cuda.current_device()
    there = torch.device("cuda", (here + 1) % torch.cuda.device_count())
    placed = trial.changed("", **{name: x.to(there) for name, x in trial.tensors.items()})
    with judge.probe.environment():
        result = dispatch.call(trial.spec, placed.values, judge.probe.label)
    outputs = result if isinstance(result, tuple) else (result,)
    for output, got in zip(trial.spec.outputs, outputs, strict=True):
        judge.require(got.device == there, f"{output.name}: expected it on {there}, got {got.device}")
    judge.require(torch.cuda.current_device() == here, "the current GPU is another one after the call")
    judge.accurate([got.to(trial.call.device) for got in outputs])
    if autograd.differentiable(trial.spec) and not autograd.lacking(trial.call, judge.probe.backend):
        _gradient(judge, placed.values, there)


def _gradient(judge: Judge, values: tuple[object, ...], there: torch.device) -> None:
    spec, here = judge.trial.spec, torch.cuda.current_device()
    wanted = {*getattr(spec.gradient, "tensors", ())}
    pairs = list(zip(spec.inputs, values, strict=True))
    leaves = {i.name: v.detach().clone() for i, v in pairs if i.name in wanted and isinstance(v, torch.Tensor)}
    for leaf in leaves.values():
        leaf.requires_grad_()
    with torch.enable_grad(), judge.probe.environment(grad=True):
        result = dispatch.call(spec, tuple(leaves.get(i.name, v) for i, v in pairs), judge.probe.backend)
        first = result[0] if isinstance(result, tuple) else result
        found = torch.autograd.grad(first.sum(), list(leaves.values()), allow_unused=True)
    for name, got in zip(leaves, found, strict=True):
        judge.require(got is not None and got.device == there, f"the gradient of {name}: expected it on {there}")
    judge.require(torch.cuda.current_device() == here, "the current GPU is another one after the backward")


def _applies(backend: Backend, device: str) -> bool:
    return device == "cuda"


CHECK = Check(
    run=run, column="device", applies=_applies, summary="runs where its tensors are, whichever GPU is the current one"
)
