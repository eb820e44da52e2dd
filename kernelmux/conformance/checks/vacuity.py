"""Judges the cases: each must reject zeros, a constant, a copy, a rolled, a scaled and an incomplete result.

A mutant is exempt where it is right: on empty outputs, and where it rounds to the numbers of the reference. What random
inputs hide (a sum may happen to be near zero) must show in another dtype of the case and on its exact inputs; on these
alone where the output is a single number, which may be near zero in every dtype. A dropped term may hide in the rounding
of a 16-bit result, and must then show in another dtype or on the exact inputs. What one draw of the inputs hides
altogether must show in one of the next: a case is vacuous, not a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import torch

from kernelmux.conformance.check import SPEC, Check
from kernelmux.conformance.inputs import trials
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging.probe import Judge, Probe
from kernelmux.registry.cases import Case
from kernelmux.registry.spec import numerics

Tensors = tuple[torch.Tensor, ...]
DRAWS = 5  # of which one must show what is asked


def run(probe: Probe) -> None:
    telling: set[str] = set()
    for case in probe.cases:
        made = [probe.make(case, dtype) for dtype in probe.options.dtypes_of(probe.spec, case)]
        exact = trials.exact_trial(probe.spec, case, made[0].dtype, made[0].seed, probe.device) if made else None
        for trial in made:
            if trial.empty:
                probe.skip(trial, "nothing is computed: zero-size shapes check that nothing goes wrong")
                continue
            with probe.judge(trial) as judge:
                telling |= _rejects_mutants(judge, case, made, exact)
                if trial is made[0]:
                    _dropped(judge, case, made, exact)
    silent = [o.name for o in probe.spec.outputs if o.name not in telling]
    if silent and probe.options.complete and not probe.failed:
        raise LookupError(f"no case rejects zeros in the output {', '.join(silent)}")


def _draws(judge: Judge, case: Case, made: list[Trial]) -> Iterator[list[Trial]]:
    """The trials of a case in all dtypes, and the same with the inputs of the next seeds."""
    yield made
    for seed in range(judge.trial.seed + 1, judge.trial.seed + DRAWS):
        yield [judge.probe.make(case, trial.dtype, seed) for trial in made]


def _judged_wrong(name: str, trial: Trial, drawn: list[Trial], any_dtype: bool) -> bool:
    """Whether a mutant is judged wrong in a draw, in the dtype of the trial or in any."""
    asked = (t for t in drawn if any_dtype or t.dtype == trial.dtype)
    return any(telling_outputs(t, dict(mutants(t))[name]) for t in asked)


def _rejects_mutants(judge: Judge, case: Case, made: list[Trial], exact: Trial | None) -> set[str]:
    """Ask about every mutant; the outputs in which zeros are judged wrong."""
    trial, telling = judge.trial, set[str]()
    unequal = {name for name, mutant in mutants(exact) if not _right(exact, mutant)} if exact else set()
    single = all(r.numel() == 1 for r in trial.references)
    for name, mutant in mutants(trial):
        found = telling_outputs(trial, mutant)
        telling |= found if name == "zeros" else set()
        shown = found or _right(trial, mutant) or (single and name in unequal)
        shown = shown or any(_judged_wrong(name, trial, drawn, name in unequal) for drawn in _draws(judge, case, made))
        judge.require(bool(shown), f"the case is vacuous: it accepts {name}")
    return telling


def mutants(trial: Trial) -> Iterator[tuple[str, Tensors]]:
    """Wrong results in float64, each with its name."""
    refs = trial.references
    yield "zeros", tuple(torch.zeros_like(r) for r in refs)
    if any(r.is_floating_point() for r in refs):
        yield "a constant", tuple(torch.full_like(r, float(r[r.isfinite()].double().mean())) for r in refs)
        yield "a result that is 5 % too large", tuple(r * 1.05 if r.is_floating_point() else r for r in refs)
    for name, x in trial.tensors.items():
        if any(x.shape == r.shape for r in refs):
            yield f"a copy of {name}", tuple(x.to(r) if x.shape == r.shape else torch.zeros_like(r) for r in refs)
    if all(r.dim() for r in refs):
        yield "a result rolled along its last axis", tuple(r.roll(1, -1) for r in refs)
        yield "a result rolled along its first axis", tuple(r.roll(1, 0) for r in refs)


def telling_outputs(trial: Trial, mutant: Tensors) -> set[str]:
    """The outputs in which the mutant is judged wrong."""
    return {
        output.name
        for output, ref, wrong, limit in zip(trial.spec.outputs, trial.references, mutant, limits(trial), strict=True)
        if not _accepted(wrong.to(output.dtype_of(trial.call)), ref, limit)
    }


def _accepted(got: torch.Tensor, ref: torch.Tensor, limit: torch.Tensor | None) -> bool:
    return torch.equal(got, ref.to(got.dtype)) if limit is None else numerics.compare(got, ref, limit).passed


def _right(trial: Trial, mutant: Tensors) -> bool:
    """Whether the mutant rounds to the same numbers as the reference, in every output."""
    outputs = zip(trial.spec.outputs, trial.references, mutant, strict=True)
    return all(_same(w.to(d := o.dtype_of(trial.call)), r.to(d)) for o, r, w in outputs)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same numbers, NaN in the same places."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    return torch.allclose(a.double(), b.double(), rtol=0, atol=0, equal_nan=True)


@lru_cache(maxsize=8)
def limits(trial: Trial) -> list[torch.Tensor | None]:
    """The loosest bound that any arithmetic gets for this call; None where results must be equal."""
    ways = [numerics.arithmetic(name, trial.dtype, trial.call.scalars) for name in ("mma", "fp32_sequential")]
    all_of = [trial.bounds([way] * len(trial.spec.outputs)) for way in ways]
    return [torch.maximum(a.total, b.total) if a and b else None for a, b in zip(*all_of, strict=True)]


def _dropped(judge: Judge, case: Case, made: list[Trial], exact: Trial | None) -> None:
    """Without the last column of any input, or else its largest element, some dtype (or exact inputs) must show it."""
    for name, x in made[0].tensors.items():
        if x.dim() and x.shape[-1] > 1:
            draws = _draws(judge, case, made)
            shown = any(_shown(drawn, exact, name, drop) for drawn in draws for drop in (_last_column, _largest))
            judge.require(shown, f"the case is vacuous: it accepts a result without an element of {name}")


def _shown(made: list[Trial], exact: Trial | None, name: str, drop: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Whether the drop is judged wrong, or right because the element has no part in the result."""
    dropped = [trial.changed("", **{name: drop(trial.tensors[name])}).references for trial in made]
    pairs = list(zip(made, dropped, strict=True))
    if any(telling_outputs(trial, mutant) for trial, mutant in pairs) or all(_right(*pair) for pair in pairs):
        return True
    return exact is not None and not _right(exact, exact.changed("", **{name: drop(exact.tensors[name])}).references)


def _last_column(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[..., -1] = 0
    return x


def _largest(x: torch.Tensor) -> torch.Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    x.view(-1)[x.to(torch.float64).abs().argmax()] = 0
    return x


CHECK = Check(
    run=run,
    column="vacuit",
    about=SPEC,
    summary="every case rejects zeros, constants, copies, rolled, scaled and incomplete results",
)
