"""Calls under autograd: the node that a call leaves gives the gradients that the spec declares, in every layout of theirs.

Where an operator computes them, they are within its bound of its float64 reference; where they are composed of public
operators, they have the bits of that composition. A backend made of torch's operators is differentiated by torch:
torch.autograd.gradcheck compares its formula, in float64, with differences. Autograd does not see variants, so that the
one that a call by the name of the backend runs is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kernelmux.conformance.check import Check
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging import asked_less
from kernelmux.conformance.judging.probe import Judge, Probe
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.errors import UnsupportedError
from kernelmux.registry.interop import autograd
from kernelmux.registry.spec import OpSpec, gradient, numerics
from kernelmux.registry.spec.gradient import Composed, Gradient

Tensors = dict[str, torch.Tensor]
LARGEST = 8192  # elements of a call that is compared with differences
FEW = 512  # of one whose elements are moved one by one; of a larger one along a random direction


def run(probe: Probe) -> None:
    if probe.variant != (asked := asked_less.last(probe.spec.name, probe.backend)):
        probe.skip_all(f"autograd does not see variants: {asked} is asked")
        return
    declared = probe.spec.gradient if isinstance(probe.spec.gradient, Gradient | Composed) else None
    if registered.composite(probe.backend):
        _of_torch(probe, declared)
        return
    if isinstance(declared, Gradient) and not registered.implements(probe.backend, declared.op):
        declared = None
    sample = probe.sample(
        2 if probe.emulated else 4, where=lambda trial: declared is None or _differentiable(trial, declared)
    )
    if declared:
        sample = [trial for trial in sample if _composable(probe, trial)]
    for turn, trial in enumerate(sample):
        with probe.judge(trial) as judge:
            if declared:
                _declared(judge, declared, list(LAYOUTS.values())[turn % len(LAYOUTS)])
            else:
                _without_gradient(judge)


def _composable(probe: Probe, trial: Trial) -> bool:
    """Whether the backend has what the gradient of this call is made of; scalars decide that, as an activation does."""
    if lacking := autograd.lacking(trial.call, probe.backend):
        probe.skip(
            trial, f"the gradient is made of {', '.join(lacking)}, of which {probe.backend} has no implementation"
        )
    return not lacking


def _of_torch(probe: Probe, declared: Gradient | Composed | None) -> None:
    """A backend that is made of torch's operators, into which autograd sees."""
    if declared is None:
        probe.skip_all("no gradient is declared, and what torch gives for its own operators is torch's")
        return
    for trial in _ordinary(probe):
        with probe.judge(trial) as judge:
            _checked_by_differences(judge, declared)


def _differentiable(trial: Trial, declared: Gradient | Composed) -> bool:
    """Whether the tensors that have a gradient are of a dtype that has one: a transpose moves integers too."""
    return all(trial.tensors[name].is_floating_point() for name in declared.tensors if name in trial.tensors)


def _ordinary(probe: Probe) -> list[Trial]:
    """Small trials with numbers of about 1, in which a difference shows a derivative; none of NaN."""
    cases = [c for c in probe.small_cases(4) if c.inputs == "normal" and "inputs=" not in c.text]
    made = (probe.make(c, d) for c in cases for d in probe.options.dtypes_of(probe.spec, c)[:1])
    able = sorted((trial for trial in made if not probe.reasons(trial)), key=lambda trial: trial.size)
    able = [trial for trial in able if not any(y.isnan().any() for y in trial.references)]
    return [trial for trial in able if trial.size <= LARGEST][:4] or able[:1]


def _expanded(g: torch.Tensor) -> torch.Tensor:
    """One number for all, as the gradient of a sum comes."""
    return g.reshape(-1)[:1].reshape([1] * g.dim()).expand(g.shape) if g.numel() else g


def _turned(g: torch.Tensor) -> torch.Tensor:
    """The same numbers in memory that is not contiguous."""
    return g.transpose(0, -1).contiguous().transpose(0, -1) if g.dim() > 1 else torch.stack([g, g], -1)[..., 0]


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "expanded": _expanded,
    "turned": _turned,
    "contiguous": lambda g: g,
}


def _without_gradient(judge: Judge) -> None:
    """An input that requires one is refused, with what to do; integers have none to lose."""
    leaves = _leaves(judge.trial, [n for n, x in judge.trial.tensors.items() if x.is_floating_point()])
    try:
        outputs = _forward(judge, leaves)
    except UnsupportedError as error:
        judge.require("requires a gradient" in str(error), f"the refusal does not speak of the gradient: {error}")
        judge.require("detach()" in str(error), f"the refusal does not say what to do: {error}")
        return
    lost = [o.name for o, y in zip(judge.trial.spec.outputs, outputs, strict=True) if y.is_floating_point()]
    judge.require(not lost, f"{', '.join(lost)}: came without a gradient and without a word")


def _declared(judge: Judge, declared: Gradient | Composed, layout: Callable[[torch.Tensor], torch.Tensor]) -> None:
    trial, spec = judge.trial, judge.trial.spec
    names = [name for name in declared.tensors if name in trial.tensors]
    leaves = _leaves(trial, names)
    outputs = _forward(judge, leaves)
    returned = _varying(spec, outputs)
    for o, y in zip(spec.outputs, outputs, strict=True):
        judge.require(o.name in returned or not y.requires_grad, f"{o.name}: is constant, and requires a gradient")
    for name, y in returned.items():
        judge.require(y.grad_fn is not None, f"{name}: has no grad_fn, though {', '.join(names)} require a gradient")
    grads = {name: layout(_drawn(trial, name, y)) for name, y in returned.items()}
    found = dict(zip(names, _backward(judge, returned, leaves, grads, keep=True), strict=True))
    values = {**trial.call.arguments, **{o.name: y.detach() for o, y in zip(spec.outputs, outputs, strict=True)}}
    if isinstance(declared, Composed):
        _composed(judge, declared, values, grads, found)
    else:
        _within_bound(judge, declared, values, grads, found)
    _part_of_them(judge, names, returned, grads, found)


def _varying(spec: OpSpec, outputs: tuple[torch.Tensor, ...]) -> Tensors:
    """The outputs from which gradients come, by name."""
    names = gradient.varying(spec)
    return {o.name: y for o, y in zip(spec.outputs, outputs, strict=True) if o.name in names}


def _leaves(trial: Trial, names: list[str]) -> Tensors:
    pairs = ((name, trial.tensors[name]) for name in names)
    copies = {name: torch.empty_like(x, pin_memory=trial.spec.hosted and x.is_pinned()).copy_(x) for name, x in pairs}
    return {name: x.requires_grad_() for name, x in copies.items()}


def _forward(judge: Judge, leaves: Tensors) -> tuple[torch.Tensor, ...]:
    spec = judge.trial.spec
    values = tuple(leaves.get(i.name, v) for i, v in zip(spec.inputs, judge.trial.values, strict=True))
    with torch.enable_grad(), judge.probe.environment(grad=True):
        result = dispatch.call(spec, values, judge.probe.label)
    return result if isinstance(result, tuple) else (result,)


def _backward(judge: Judge, outputs: Tensors, leaves: Tensors, grads: Tensors, keep: bool) -> list[torch.Tensor]:
    ends, given = [outputs[name] for name in grads], list(grads.values())
    with judge.probe.environment(grad=True):
        found = torch.autograd.grad(ends, list(leaves.values()), given, retain_graph=keep, allow_unused=True)
    for (name, leaf), got in zip(leaves.items(), found, strict=True):
        judge.require(got is not None, f"{name}: got no gradient")
        fits = got is not None and got.shape == leaf.shape and got.dtype == leaf.dtype
        judge.require(fits, f"the gradient of {name}: expected the shape and dtype of {name}")
    return [g for g in found if g is not None]


def _drawn(trial: Trial, name: str, y: torch.Tensor) -> torch.Tensor:
    """A gradient of an output, the same in every run."""
    rng = torch.Generator().manual_seed(trial.seed + len(name))
    return torch.randn(y.shape, generator=rng).to(y.device, y.dtype)


def _within_bound(judge: Judge, declared: Gradient, values: dict[str, Any], grads: Tensors, found: Tensors) -> None:
    """Against the float64 reference of the operator of gradients, on what the forward call left."""
    trial, backend = judge.trial, judge.probe.backend
    backward = catalog.spec(declared.op)
    made = tuple(gradient.arguments(trial.spec, backward, values, grads).values())
    other = Trial(backward, trial.case, trial.text, trial.dtype, trial.seed, made)
    name, _, variant = dispatch.which(declared.op, *made, backend=backend).partition("/")
    ran = registered.variants(name, declared.op)[variant]
    how = [ran.computes(o.name, trial.dtype, other.call.scalars) for o in backward.outputs]
    pairs = zip(declared.wrt, other.references, other.bounds(how), strict=True)
    expected = {tensor: (ref, limit) for tensor, ref, limit in pairs}
    expected |= {tensor: expected[of] for tensor, of in declared.same.items()}
    for tensor, got in found.items():
        ref, limit = expected[tensor]
        if limit is None:
            raise TypeError(f"{declared.op}: {tensor}: a gradient needs a floating dtype, got {ref.dtype}")
        compared = numerics.compare(got, ref, limit.total)
        judge.record.budget = max(judge.record.budget, compared.budget)
        at = list(compared.index)
        judge.require(
            compared.passed,
            lambda: (
                f"the gradient of {tensor} is {compared.budget:.3g} of the bound of {declared.op} at {at}:"  # noqa: B023
                f" got {got[compared.index].item():.9g}, expected {ref[compared.index].item():.9g}"  # noqa: B023
            ),
        )


def _composed(judge: Judge, declared: Composed, values: dict[str, Any], grads: Tensors, found: Tensors) -> None:
    """The bits of the public operators, called one by one on the same backend."""

    def run(spec: Any, arguments: tuple[Any, ...]) -> Any:
        return dispatch.call(spec, arguments, judge.probe.backend)

    with judge.probe.environment():
        expected = declared.compute(autograd.Operators(run), values, grads)
    for name, got in found.items():
        judge.equal(f"the gradient of {name}", got.contiguous(), expected[name].contiguous())


def _part_of_them(judge: Judge, names: list[str], outputs: Tensors, grads: Tensors, found: Tensors) -> None:
    """For one tensor alone, and from the same graph again, the bits are the same; for no gradient there is none."""
    leaves = _leaves(judge.trial, names[-1:])
    ends = _varying(judge.trial.spec, _forward(judge, leaves))
    (alone,) = _backward(judge, ends, leaves, grads, keep=False)
    judge.equal(f"the gradient of {names[-1]} alone", alone.contiguous(), found[names[-1]].contiguous())


class InDouble(TorchFunctionMode):
    """Inside, what asks for fp32 gets float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()
        given = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        return func(*(torch.float64 if v is torch.float32 else v for v in args), **given)


def _checked_by_differences(judge: Judge, declared: Gradient | Composed) -> None:
    """torch.autograd.gradcheck on the implementation, computed in float64."""
    trial, spec = judge.trial, judge.trial.spec
    names = [name for name in declared.tensors if name in trial.tensors]
    leaves = {name: trial.tensors[name].detach().double().requires_grad_() for name in names}
    rest = {n: x.double() if x.is_floating_point() else x for n, x in trial.tensors.items() if n not in names}

    def function(*given: torch.Tensor) -> Any:
        arguments = {**trial.call.arguments, **rest, **dict(zip(names, given, strict=True))}
        with InDouble():
            result = judge.probe.implementation.fn(*arguments.values())
        return result[: spec.visible] if isinstance(result, tuple) else result

    with torch.enable_grad(), judge.probe.environment(grad=True):
        fast = trial.size > FEW
        # nondet_tol: cuDNN may add the parts of a gradient in any order.
        agrees = torch.autograd.gradcheck(function, tuple(leaves.values()), atol=1e-5, nondet_tol=1e-9, fast_mode=fast)
    judge.require(agrees, "differs from differences")  # gradcheck raises, with the numbers


CHECK = Check(
    run=run,
    column="grads",
    summary="under autograd: the declared gradients, for every layout and subset; no gradient is lost without a word",
)
