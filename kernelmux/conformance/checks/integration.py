"""The operators in programs of torch: vmap, torch.compile, torch.export, autograd in every way of calling, and `patch`.

Each way is compared with the plain call of the same function on the same backend: equal bits, but for what runs as another
call (a batch under vmap) or by another formula (torch's own derivative of the baseline, torch's own module). As under
autograd, variants make no difference. The table is `integration.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch._dynamo.exc import UserError

from kernelmux.conformance.check import Check
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging import asked_less
from kernelmux.conformance.judging.probe import Failed, Judge, Probe
from kernelmux.conformance.variations import patched_modules, torch_ways
from kernelmux.conformance.variations.torch_ways import FUNCTION, NO_GRADIENT, OPERATOR, STATIC, WAYS, Tensors
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.errors import KernelmuxError, UnsupportedError
from kernelmux.registry.interop import autograd
from kernelmux.registry.spec import Tensor, numerics
from kernelmux.registry.spec.signature import spread

EXAMPLES = 2  # of a batch
LEAST = 4  # elements of the largest tensor
MOST = 12  # trials among which one is chosen whose batch may grow
BRIEF = ("vmap", "gradient")  # what emulated kernels are asked in a short run: the rest is one graph for all backends
REFUSED = "refused"


def run(probe: Probe) -> None:
    if probe.variant != (asked := asked_less.last(probe.spec.name, probe.backend)):
        probe.skip_all(f"programs of torch do not see variants: {asked} is asked")
        return
    if probe.spec.hosted and probe.device.type == "cuda":
        probe.skip_all("copies that torch makes of pinned memory are not pinned")
        return
    found = list(islice(_trials(probe), MOST))
    if not found:
        for case, dtype in probe.pairs():
            probe.able(probe.make(case, dtype))
        return
    trial = next(filter(_longer, found), found[0])
    for name in WAYS:
        noted = trial.changed(name)
        if reason := _apart(probe, trial, name):
            probe.skip(noted, reason)
            continue
        with probe.judge(noted) as judge, probe.environment(grad=True):
            ASKED[name](judge)


def _trials(probe: Probe) -> Iterator[Trial]:
    """Small finite trials that the variant can run, in the first dtype that it takes."""
    for case in probe.small_cases(LEAST):
        for dtype in probe.options.dtypes_of(probe.spec, case):
            trial = probe.make(case, dtype)
            if not probe.reasons(trial) and all(bool(torch.isfinite(ref).all()) for ref in trial.references):
                yield trial


def _apart(probe: Probe, trial: Trial, name: str) -> str:
    """Why a way is not asked, or ""."""
    if name == "patch" and (lack := patched_modules.missing(probe.spec.name)):
        return lack
    if name == "patch" and not registered.composite(probe.backend) and autograd.lacking(trial.call, probe.backend):
        return "its backend has no gradient, which a module wants"
    if name == "gradient" and trial.dtype.itemsize < 4 and registered.composite(probe.backend):
        if autograd.differentiable(probe.spec):
            return "two formulas of torch's own round on other ways in 16 bits: compared in fp32"
    return (
        "asked of torch_ref and on a GPU: without one the graph is the same"
        if probe.brief and name not in BRIEF
        else ""
    )


def _arguments(trial: Trial) -> dict[str, Any]:
    return {item.name: value for item, value in zip(trial.spec.inputs, trial.values, strict=True)}


# --- vmap ---------------------------------------------------------------------------------------------------------


def _vmap(judge: Judge) -> None:
    """Over all tensors, those that are floating, and each alone; along the first axis, and once along the last."""
    trial, probe = judge.trial, judge.probe
    drawn = [trial.tensors, *(_another(judge, seed).tensors for seed in range(1, EXAMPLES))]
    every = list(trial.tensors)
    floating = [name for name in every if trial.tensors[name].is_floating_point()]
    asked = [(names, 0) for names in dict.fromkeys(map(tuple, (every, floating, *([n] for n in every)))) if names]
    asked = asked[:1] if probe.brief else [*asked, (tuple(every), -1)]
    for kind in (FUNCTION, OPERATOR):
        call = torch_ways.way(trial.spec.name, kind, probe.backend)
        for names, at in asked:
            examples = [{name: tensors[name] for name in names} for tensors in drawn]
            found = torch_ways.mapped(call, _arguments(trial), examples, at)
            for i, own in enumerate(examples):
                told = f"{kind}, in_dims={at} of {', '.join(names)}, example {i}"
                _as_alone(judge, call, own, tuple(y[i] for y in found), told)


def _another(judge: Judge, seed: int) -> Trial:
    """The case with other values."""
    trial, probe = judge.trial, judge.probe
    case = next(c for c in probe.cases if c.name == trial.case and c.text == trial.text)
    return probe.make(case, trial.dtype, trial.seed + seed)


def _as_alone(judge: Judge, call: torch_ways.Run, own: Tensors, found: tuple[torch.Tensor, ...], told: str) -> None:
    """An example of a batch is what a call of it alone gives: the same bits, or both within the bound of the operator."""
    for i, want in enumerate(call({**_arguments(judge.trial), **own})):
        output = judge.trial.spec.outputs[i]
        same = found[i].shape == want.shape and found[i].dtype == want.dtype
        judge.require(
            same, f"{output.name} ({told}): expected {list(want.shape)} {want.dtype}, got {list(found[i].shape)}"
        )
        limit = None if torch.equal(found[i], want) else _bound(judge, judge.trial.changed("", **own), i)
        if limit is None:
            judge.equal(f"{output.name} ({told})", found[i], want)
        else:
            _near(judge, f"{output.name} ({told})", found[i], want, 2 * limit)


def _bound(judge: Judge, trial: Trial, i: int) -> torch.Tensor | None:
    found = trial.bounds(judge.probe.arithmetics(trial))[i]
    return found.total if found else None


def _near(judge: Judge, name: str, got: torch.Tensor, want: torch.Tensor, limit: torch.Tensor) -> None:
    compared = numerics.compare(got, want.to(torch.float64), limit)
    judge.record.budget = max(judge.record.budget, compared.budget)
    told = f"{compared.budget:.3g} of what the bounds allow, first at {list(compared.index)}"
    judge.require(compared.passed, f"{name}: differs by {told}")


# --- autograd, torch.compile, torch.export ----------------------------------------------------------------------------


def _outcome(call: torch_ways.Run, values: Mapping[str, Any], wanted: list[str] | None) -> Any:
    """Outputs and gradients, or REFUSED."""
    try:
        return torch_ways.gradients(call, values, wanted)
    except UnsupportedError:
        return REFUSED


def _wishes(judge: Judge) -> list[list[str]]:
    """Of which tensors gradients are asked: all, and those alone that the operator declares."""
    values, declared = _arguments(judge.trial), getattr(judge.trial.spec.gradient, "tensors", ())
    every = torch_ways.differentiable(values)
    some = [name for name in every if name in declared]
    return [every, *([some] if some and some != every else [])]


def _gradient(judge: Judge) -> None:
    """The function and the operator of torch refuse the same, and have the same gradients."""
    trial, probe = judge.trial, judge.probe
    function, operator = (torch_ways.way(trial.spec.name, kind, probe.backend) for kind in (FUNCTION, OPERATOR))
    for wanted in _wishes(judge):
        eager, other = (_outcome(call, _arguments(trial), wanted) for call in (function, operator))
        _same(judge, "torch.ops", eager, other, exact=not registered.composite(probe.backend))


def _compile(judge: Judge) -> None:
    """torch.compile(fullgraph=True) gives the bits of the eager call, and the gradients of the operator of torch."""
    trial, probe = judge.trial, judge.probe
    function, operator = (torch_ways.way(trial.spec.name, kind, probe.backend) for kind in (FUNCTION, OPERATOR))
    torch._dynamo.reset()
    run = torch.compile(function, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        want, got = function(_arguments(trial)), run(_arguments(trial))
    _outputs(judge, "compiled", want, got)
    for wanted in _wishes(judge):
        if (eager := _outcome(operator, _arguments(trial), wanted)) == REFUSED:
            continue
        try:
            _same(judge, "compiled", eager, _outcome(run, _arguments(trial), wanted), exact=True)
        except UserError as error:  # torch looks into the baseline, which reads values of a tensor
            judge.require(not autograd.differentiable(trial.spec), f"torch.compile: {error}")
            judge.remark(f"{NO_GRADIENT}: torch.compile refuses one of torch's own, as values are read")
        return


def _outputs(judge: Judge, told: str, want: tuple[torch.Tensor, ...], got: tuple[torch.Tensor, ...]) -> None:
    for output, x, y in zip(judge.trial.spec.outputs, want, got, strict=False):
        _alike(judge, f"{output.name} {told}", y.detach(), x.detach())


def _same(judge: Judge, told: str, want: Any, got: Any, exact: bool) -> None:
    """Two outcomes agree in what is refused, which gradients there are, and their numbers.

    exact: in every bit; else as torch.testing.assert_close has it for the dtype, as two formulas round on other ways.
    """
    both = [REFUSED if outcome == REFUSED else "computed" for outcome in (want, got)]
    judge.require(both[0] == both[1], f"the gradient is {both[0]} by the function, and {both[1]} by {told}")
    if want == REFUSED:
        return
    _outputs(judge, f"by {told}", want[0], got[0])
    for name, expected in want[1].items():
        found = got[1][name]
        lost = f"the gradient of {name}: {'none' if found is None else 'one'} by {told}, and by the eager call"
        judge.require((found is None) == (expected is None), f"{lost} {'none' if expected is None else 'one'}")
        if expected is None:
            continue
        compare = _alike if exact else _close
        compare(judge, f"the gradient of {name} by {told}", found.contiguous(), expected.contiguous())


def _alike(judge: Judge, name: str, got: torch.Tensor, want: torch.Tensor) -> None:
    """In every bit, of a variant whose calls give equal bits."""
    compare = judge.equal if judge.probe.implementation.deterministic else partial(_close, judge)
    compare(name, got, want)


def _close(judge: Judge, name: str, got: torch.Tensor, want: torch.Tensor) -> None:
    try:
        torch.testing.assert_close(got, want, equal_nan=True)
    except AssertionError as error:
        raise Failed(f"{name}: {error}") from error
    judge.require(True, "")


def _export(judge: Judge) -> None:
    """A program of torch.export, saved and loaded, gives the bits of the call; with another batch where it may."""
    trial, backend = judge.trial, judge.probe.backend
    rest = {name: value for name, value in _arguments(trial).items() if name not in trial.tensors}
    longer, call = _longer(trial), torch_ways.way(trial.spec.name, FUNCTION, backend)
    with torch.no_grad():
        program, dynamic = torch_ways.exported(trial.spec.name, trial.tensors, rest, backend, list(longer))
        _outputs(judge, "exported", call(_arguments(trial)), program(*trial.tensors.values()))
        if longer and dynamic:
            tensors = {**trial.tensors, **longer}
            _outputs(judge, "exported, with another batch", call({**rest, **tensors}), program(*tensors.values()))
    if not (longer and dynamic):
        judge.remark(f"{STATIC}: the program takes no other batch")


def _longer(trial: Trial) -> Tensors:
    """The tensors whose first axis is that of the first tensor, twice as long; {} if there is no such call."""
    firsts = {i.name: _first(i, trial.tensors[i.name]) for i in trial.spec.tensors if i.name in trial.tensors}
    label = next(filter(None, firsts.values()), "")
    found = {name: torch.cat([trial.tensors[name]] * 2) for name, own in firsts.items() if label and own == label}
    try:
        trial.spec.bind(**{**_arguments(trial), **found})
    except KernelmuxError:
        return {}
    return found


def _first(item: Tensor, x: torch.Tensor) -> str:
    """What the first axis of a tensor is called; "" for none, and for one of a single element, which torch keeps."""
    forms = (spread(form, tuple(x.shape)) for form in item.forms)
    names = next((found for found in forms if found is not None), ())
    return names[0] if names and x.shape[0] > 1 else ""


# --- patch ------------------------------------------------------------------------------------------------------------


def _patch(judge: Judge) -> None:
    """The module that `patch` swaps, against itself before: outputs within both bounds, and the same gradients."""
    probe = judge.probe
    for pair in patched_modules.pairs(probe.spec.name, probe.device, probe.options.seed):
        plain, swapped = pair.results(probe.backend)
        trial = Trial(probe.spec, judge.trial.case, judge.trial.text, torch.float32, judge.trial.seed, pair.arguments)
        base = next(iter(registered.variants("torch_ref", probe.spec.name).values()))
        how = [base.computes(o.name, trial.dtype, trial.call.scalars) for o in trial.spec.outputs]
        mine, theirs = trial.bounds(probe.arithmetics(trial))[0], trial.bounds(how)[0]
        judge.require(mine is not None and theirs is not None, "expected a floating output of a module")
        if mine and theirs:
            _near(judge, "the output of the module", swapped[0][0], plain[0][0], mine.total + theirs.total)
        for name, expected in plain[1].items():
            found = swapped[1][name]
            judge.require((found is None) == (expected is None), f"the gradient of {name}: on one side alone")
            if found is not None and expected is not None:
                _close(judge, f"the gradient of {name} of the module", found, expected)


ASKED: dict[str, Callable[[Judge], None]] = dict(zip(WAYS, (_vmap, _compile, _export, _gradient, _patch), strict=True))
CHECK = Check(
    run=run,
    column="integ",
    summary="in programs of torch: vmap, torch.compile, torch.export, gradients in every way of calling, and patch",
)
