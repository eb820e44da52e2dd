"""The gradient that a spec declares is that of its reference: float64 autograd says so, on what the forward call leaves.

An operator of gradients gets its inputs as it will at run time: arguments, saved outputs and gradients of outputs. Its
spec must take these in the dtypes that they have, and compute what it says is computed as the forward call does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from kernelmux.conformance.check import SPEC, Check
from kernelmux.conformance.inputs import generate
from kernelmux.conformance.inputs.trials import Trial, computed
from kernelmux.conformance.judging.probe import Judge, Probe
from kernelmux.conformance.variations import breakpoints
from kernelmux.registry import catalog
from kernelmux.registry.cases import Case
from kernelmux.registry.spec import OpSpec, Scalar, gradient
from kernelmux.registry.spec.gradient import Composed, Gradient, NoGradient

CASES = 6  # small ones, as they are listed
CLOSE = 1e-7  # of the largest element: float64 leaves 1e-16, which a cancellation makes larger
NOISE = (
    2.0**-40
)  # of the largest element of all gradients, and per unit of a factor such as scale: for one that cancels
SAVED = 1e-6  # of what is saved in fp32
Tensors = dict[str, torch.Tensor]


def run(probe: Probe) -> None:
    declared = probe.spec.gradient
    if declared is None:
        raise LookupError(f"{probe.spec.name}: expected gradient=Gradient(...), Composed(...) or NoGradient(reason)")
    if isinstance(declared, NoGradient):
        probe.skip_all(f"no gradient: {declared.reason}")
        return
    for trial in _trials(probe):
        with probe.judge(trial) as judge:
            _compare(judge, declared)


def _trials(probe: Probe) -> Iterator[Trial]:
    """Small cases, the first of them with every other value of each scalar, and values beside breakpoints."""
    spec = probe.spec
    dtype = torch.float32 if torch.float32 in spec.dtypes else next(d for d in spec.dtypes if d.is_floating_point)
    cases = [c for c in probe.small_cases(2) if c.inputs == "normal" and dtype in (c.dtypes or spec.dtypes)]
    for case in (*cases[:CASES], *(other for first in cases[:1] for other in _with_scalars(spec, first))):
        if generate.permitted(spec, case, dtype):
            yield probe.make(case, dtype)
    for item in (t for t in spec.tensors if t.breakpoints):
        for case in cases[:CASES][-1:]:
            yield from breakpoints.around(probe.make(case, dtype), item, apart=True)


def _with_scalars(spec: OpSpec, case: Case) -> Iterator[Case]:
    for item in (i for i in spec.scalars if isinstance(i, Scalar)):
        yield from (generate.with_scalars(case, {item.name: value}) for value in generate.pool(item))


def _compare(judge: Judge, declared: Gradient | Composed) -> None:
    spec, call = judge.trial.spec, judge.trial.call
    exact = call.exact
    leaves = {n: exact[n].detach().requires_grad_() for n in declared.tensors if exact[n] is not None}
    with torch.enable_grad():
        result = spec.reference(*{**exact, **leaves}.values())
        outputs = result if isinstance(result, tuple) else (result,)
        every = dict(zip((o.name for o in spec.outputs), outputs, strict=True))
        returned = {name: every[name] for name in gradient.varying(spec)}
        grads = _drawn(judge.trial, returned)
        found = torch.autograd.grad(
            list(returned.values()), list(leaves.values()), list(grads.values()), allow_unused=True
        )
    got = _given(judge, declared, {**exact, **{name: y.detach() for name, y in every.items()}}, grads)
    wants = [
        torch.zeros_like(leaf) if want is None else want for leaf, want in zip(leaves.values(), found, strict=True)
    ]
    largest = max((float(want.abs().max().nan_to_num()) for want in wants if want.numel()), default=0.0)
    noise = NOISE * largest * _factor(judge.trial)
    for name, want in zip(leaves, wants, strict=True):
        _close(judge, f"the gradient of {name}", got[name], want, CLOSE, noise)


def _factor(trial: Trial) -> float:
    """The largest scalar that may multiply what cancels: attention's scale, with one key, a gradient of zero."""
    values = (trial.call.arguments[item.name] for item in trial.spec.scalars)
    return max([1.0, *(abs(value) for value in values if isinstance(value, float) and math.isfinite(value))])


def _drawn(trial: Trial, outputs: Tensors) -> Tensors:
    """A random gradient of each of these outputs, by its name."""
    rng = torch.Generator().manual_seed(trial.seed + 1)
    return {n: torch.randn(y.shape, generator=rng, dtype=torch.float64).to(y.device) for n, y in outputs.items()}


def _given(judge: Judge, declared: Gradient | Composed, values: Mapping[str, Any], grads: Tensors) -> Mapping[str, Any]:
    """What the declaration gives for each tensor, in float64."""
    if isinstance(declared, Composed):
        return declared.compute(Exact(), values, grads)
    spec, backward = judge.trial.spec, catalog.spec(declared.op)
    wanted, outputs = [f"grad_{name}" for name in declared.wrt], [o.name for o in backward.outputs]
    judge.require(outputs == wanted, f"{declared.op} gives {', '.join(outputs)}, expected {', '.join(wanted)}")
    made = gradient.arguments(spec, backward, values, grads)
    _accepted(judge, backward, made)
    result = backward.reference(*made.values())
    found = dict(zip(declared.wrt, result if isinstance(result, tuple) else (result,), strict=True))
    return {**found, **{name: found[other] for name, other in declared.same.items()}}


def _accepted(judge: Judge, backward: OpSpec, made: Mapping[str, Any]) -> None:
    """The operator of gradients takes what the forward call leaves, in its dtypes, and says of it what is so."""
    trial = judge.trial
    dtypes: dict[str, torch.dtype] = {}
    for output in trial.spec.outputs:
        kind = output.dtype_of(trial.call)
        dtypes |= {output.name: kind, f"grad_{output.name}": kind, "grad_out": kind}
    kept = {n: trial.tensors[n] if n in trial.tensors else v.to(dtypes[n]) for n, v in made.items() if _is_tensor(v)}
    call = backward.bind(**{**made, **kept})
    for item in (t for t in backward.tensors if t.name in computed(backward)):
        _close(
            judge,
            f"what is computed for {item.name}",
            item.domain.lawful(kept[item.name], call),
            made[item.name],
            SAVED,
        )


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _close(judge: Judge, what: str, got: torch.Tensor, want: torch.Tensor, share: float, noise: float = 0.0) -> None:
    judge.require(got.shape == want.shape, f"{what}: expected shape {list(want.shape)}, got {list(got.shape)}")
    largest = float(want.abs().max()) if want.numel() else 0.0
    off = (got.to(want) - want).abs() > share * max(largest, torch.finfo(torch.float32).tiny) + noise
    wrong = (off & want.isfinite()) | (got.isfinite() != want.isfinite())
    judge.require(not bool(wrong.any()), lambda: _difference(what, got, want, wrong))


def _difference(what: str, got: torch.Tensor, want: torch.Tensor, wrong: torch.Tensor) -> str:
    at = tuple(wrong.nonzero()[0].tolist())
    return f"{what} at {list(at)}: got {got[at].item():.9g}, expected {want[at].item():.9g} (autograd of the reference)"


class Exact:
    """The public operators in float64: their references, with scalars as a call gives them."""

    def __getattr__(self, op: str) -> Callable[..., Any]:
        spec = catalog.spec(op)

        def call(*args: Any, **kwargs: Any) -> Any:
            given = spec.signature.bind(*args, **kwargs)
            given.apply_defaults()
            kinds = spec.dtypes_for(spec.dtypes[0])
            plain = {n: v.to(kinds[n]) if _is_tensor(v) else v for n, v in given.arguments.items()}
            bound = spec.bind(**plain).arguments
            result = spec.reference(*(v if _is_tensor(v) else bound[n] for n, v in given.arguments.items()))
            outputs = result[: spec.visible] if isinstance(result, tuple) else (result,)
            return outputs if len(outputs) > 1 else outputs[0]

        return call


CHECK = Check(
    run=run,
    column="gradie",
    about=SPEC,
    summary="the declared gradient is that of the reference, from what the forward call leaves",
)
