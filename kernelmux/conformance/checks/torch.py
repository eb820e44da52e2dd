"""The operators as torch sees them: schema, shapes of fake tensors, autograd and compiled graphs agree with what runs.

torch.library.opcheck asks the registration; what a registration cannot know is asked of each backend: that a compiled
call gives the bits of an eager one, from a graph without a break. As under autograd, variants make no difference.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.library import opcheck

from kernelmux.conformance.check import Check
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging import asked_less
from kernelmux.conformance.judging.probe import Judge, Probe
from kernelmux.registry.call import dispatch
from kernelmux.registry.dtypes import computes
from kernelmux.registry.interop import autograd, torch_ops

ALL = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
EMULATED = ("test_autograd_registration", "test_faketensor")  # the others run the operator ten times and more


def run(probe: Probe) -> None:
    if probe.variant != (asked := asked_less.last(probe.spec.name, probe.backend)):
        probe.skip_all(f"an operator of torch does not see variants: {asked} is asked")
        return
    if probe.spec.hosted and probe.device.type == "cuda":
        probe.skip_all("opcheck copies its inputs, and a copy of pinned memory is not pinned")
        return
    count = 1 if probe.options.tier in ("smoke", "ci") else 2
    for trial in probe.sample(count, where=_finite):
        with probe.judge(trial) as judge:
            _registered(judge)
            _compiled(judge)


def _finite(trial: Trial) -> bool:
    """To opcheck no NaN equals another."""
    return all(bool(torch.isfinite(reference).all()) for reference in trial.references)


def _registered(judge: Judge) -> None:
    spec, probe = judge.trial.spec, judge.probe
    given = autograd.differentiable(spec) and not autograd.lacking(judge.trial.call, probe.backend)
    values = map(torch_ops.taken, spec.inputs, _with_gradients(judge) if given else judge.trial.values)
    with probe.environment(grad=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        registered_operator: Any = torch_ops.operator(spec.name)
        adds = all(computes(x.dtype) for x in judge.trial.tensors.values())  # as test_schema does to compare tensors
        asked = EMULATED if probe.emulated or not adds else ALL
        found = opcheck(
            registered_operator, tuple(values), {"backend": probe.backend}, test_utils=asked, raise_exception=False
        )
    for question, answer in found.items():
        judge.require(answer == "SUCCESS", f"torch.library.opcheck: {question}: {answer}")


def _with_gradients(judge: Judge) -> tuple[Any, ...]:
    """The arguments; those that have a gradient ask for one, which integers have not."""
    spec, tensors = judge.trial.spec, judge.trial.tensors
    wanted = {n for n in getattr(spec.gradient, "tensors", ()) if n in tensors and tensors[n].is_floating_point()}
    pairs = zip(spec.inputs, judge.trial.values, strict=True)
    return tuple(v.detach().clone().requires_grad_() if i.name in wanted else v for i, v in pairs)


def _compiled(judge: Judge) -> None:
    """One graph, without a break; the same bits as without a compiler."""
    from torch._dynamo.testing import CompileCounterWithBackend  # seconds, which no other check has to pay

    spec, probe = judge.trial.spec, judge.probe
    public, counter = dispatch.function(spec.name), CompileCounterWithBackend("eager")

    def function(*values: Any) -> Any:
        return public(*values, backend=probe.backend)

    torch._dynamo.reset()
    with probe.environment():
        eager = function(*judge.trial.values)
        got = torch.compile(function, fullgraph=True, backend=counter)(*judge.trial.values)
    judge.require(counter.frame_count == 1, f"expected one graph, got {counter.frame_count}")
    pairs = zip(spec.outputs, _several(eager), _several(got), strict=False)
    for output, want, have in pairs:
        judge.equal(f"{output.name} of a compiled call", have, want)


def _several(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


CHECK = Check(
    run=run,
    column="torch",
    summary="an operator of torch: opcheck, shapes of fake tensors, the same bits from torch.compile(fullgraph=True)",
)
