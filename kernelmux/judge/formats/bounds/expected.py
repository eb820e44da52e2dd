"""What is right for a call of a task, and how far a candidate's result may be off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kernelmux.judge.formats.bounds.estimated_bound import FP32, Evaluate, estimate
from kernelmux.judge.formats.bounds.spec_mapping import covered
from kernelmux.judge.formats.candidate_side import Outputs
from kernelmux.judge.formats.task import FormatError
from kernelmux.judge.formats.trial import TaskTrial
from kernelmux.registry import numerics

ESTIMATED, EQUAL, OWN = "estimated", "equal", "the task's own check"
UNDECIDED = 0.01  # of an output that must be equal: beyond it a case does not tell


@dataclass(frozen=True)
class ExpectedOutput:
    """One output: its value in float64 or as integers, the bound by element (None: equal), and its own dtype.

    Of complex numbers the value is of pairs. undecided: elements of an output that must be equal that small moves of the
    inputs change; they are not compared. also: another dtype that is right.
    """

    value: torch.Tensor
    bound: torch.Tensor | None
    dtype: torch.dtype
    undecided: torch.Tensor | None = None
    also: torch.dtype | None = None

    def compared(self, got: torch.Tensor) -> tuple[str, float]:
        """ "" or how a result is wrong, in a line, and the largest share of the bound that it uses.

        The share is infinite for what cannot be compared or must be equal, and is not.
        """
        if got.dtype not in (self.dtype, self.also):
            return f"dtype: expected {self.dtype}, got {got.dtype}", float("inf")
        got = _real(got)
        if tuple(got.shape) != tuple(self.value.shape):
            return f"shape: expected {list(self.value.shape)}, got {list(got.shape)}", float("inf")
        if self.bound is None:
            wrong = self._unequal(got)
            return wrong, float("inf") if wrong else 0.0
        found = numerics.compare(got, self.value, self.bound)
        if found.passed:
            return "", found.budget
        at, count = list(found.index), int(found.wrong.sum())
        value, right = got[found.index].item(), self.value[found.index].item()
        many = f"{count} of {got.numel()} elements off"
        return f"{many}, worst {at}: {value:.9g} for {right:.9g}, {found.budget:.3g} times its bound", found.budget

    def _unequal(self, got: torch.Tensor) -> str:
        differ = got != self.value.to(got.dtype)
        if self.undecided is not None:
            differ &= ~self.undecided
        if not bool(differ.any()):
            return ""
        index = tuple(int(k) for k in differ.nonzero()[0])
        values = f"{got[index].item()} for {self.value[index].item()}"
        return f"{int(differ.sum())} of {got.numel()} elements off, first {list(index)}: {values}, which must be equal"


@dataclass(frozen=True)
class ExpectedResult:
    """All outputs of a call. op: the operator of ours whose spec judges it, or "". bound: where bounds come from.

    check: of a task with a check of its own: "" or what is wrong with outputs. Those here are one right answer among many
    then, and not compared.
    """

    outputs: tuple[ExpectedOutput, ...]
    op: str
    bound: str
    check: Callable[[Outputs], str] | None = None

    def compared(self, got: Outputs) -> tuple[str, float]:
        """ "" or how the outputs of a candidate are wrong, in a line, and the largest share of a bound that they use."""
        if self.check is not None:
            wrong = self.check(tuple(got))
            return wrong, float("inf") if wrong else 0.0
        if len(got) != len(self.outputs):
            return f"expected {len(self.outputs)} outputs, got {len(got)}", float("inf")
        found = [output.compared(y) for output, y in zip(self.outputs, got, strict=True)]
        lines = (f"output {i}: {text}" for i, (text, _) in enumerate(found) if text)
        return next(lines, ""), max((share for _, share in found), default=0.0)

    def wrong(self, got: Outputs) -> str:
        """ "" or how the outputs of a candidate are wrong, in a line."""
        return self.compared(got)[0]


def of(trial: TaskTrial, seed: int, unit: float = FP32) -> ExpectedResult:
    """The right results of a call with their bounds; FormatError where the reference cannot be run, or its result is open.

    The spec of an operator of ours judges where the task's reference keeps its bound itself, in its own formats. seed: of
    the estimate's own draws. unit: of what kernels may compute in, see `estimated_bound.estimate`.
    """
    if trial.check is not None:
        own = trial.evaluate()
        return ExpectedResult(tuple(ExpectedOutput(y, None, y.dtype) for y in own), "", OWN, trial.check)
    exact = trial.evaluate(exactly=True)
    if not exact:
        raise FormatError("the reference returns no tensor")
    if (found := covered(trial, exact)) is not None:
        own = trial.evaluate()
        output = ExpectedOutput(found.value, found.bound, own[0].dtype, also=trial.also)
        made = ExpectedResult((output,), found.op, f"derived: the spec of {found.op}")
        if not made.wrong(own):
            return made
    dtypes = [y.dtype for y in trial.evaluate()]
    estimates = estimate(_in_real_numbers(trial), [_real(x) for x in trial.leaves], seed, unit)
    outputs = tuple(
        ExpectedOutput(e.value, e.bound, dtype, e.undecided, trial.also)
        for e, dtype in zip(estimates, dtypes, strict=True)
    )
    return ExpectedResult(outputs, "", ESTIMATED if any(o.bound is not None for o in outputs) else EQUAL)


def _real(x: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def _in_real_numbers(trial: TaskTrial) -> Evaluate:
    """The reference as a function of real numbers: complex ones go in and come out as pairs."""
    pairs = [x.is_complex() for x in trial.leaves]

    def evaluate(leaves: Sequence[torch.Tensor], exactly: bool) -> tuple[torch.Tensor, ...]:
        given = [torch.view_as_complex(x.contiguous()) if p else x for x, p in zip(leaves, pairs, strict=True)]
        return tuple(_real(y) for y in trial.evaluate(given, exactly))

    return evaluate


def vacuous(trials: Sequence[ExpectedResult]) -> str:
    """Why calls of one case with different inputs tell nothing, or "": an answer that needs no input would pass them all.

    It is zeros, one number everywhere, or the same tensor whatever the inputs are. With one call only the first two show.
    Outputs without elements, as those of unique that are not asked for, say nothing, and others may.
    """
    if not trials or trials[0].check is not None:
        return ""
    found = list(zip(*(t.outputs for t in trials), strict=True))
    told = [outputs for outputs in found if all(o.value.numel() for o in outputs)]
    if not told:
        return "output 0: it has no elements"
    for i, outputs in enumerate(found):
        undecided = outputs[0].undecided
        if undecided is not None and undecided.numel() and float(undecided.double().mean()) > UNDECIDED:
            return f"output {i}: rounding decides its values"
    if all(_passing(outputs, zeros=True) for outputs in told):
        return "zeros would pass"
    if all(_passing(outputs, zeros=False) for outputs in told):
        return "one number everywhere would pass"
    if len(trials) > 1 and all(map(_ignoring, told)):
        return "a result that ignores the inputs would pass"
    return ""


def _passing(outputs: Sequence[ExpectedOutput], zeros: bool) -> bool:
    """Whether zeros, or some number everywhere, lies within the bounds of all these outputs."""
    ranges = [_range(o) for o in outputs]
    low, high = max(float(a.max()) for a, _ in ranges), min(float(b.min()) for _, b in ranges)
    return low <= 0 <= high if zeros else low <= high


def _ignoring(outputs: Sequence[ExpectedOutput]) -> bool:
    """Whether one tensor lies within the bounds of all these outputs."""
    if len({tuple(o.value.shape) for o in outputs}) > 1:
        return False
    ranges = [_range(o) for o in outputs]
    low, high = torch.stack([a for a, _ in ranges]).amax(0), torch.stack([b for _, b in ranges]).amin(0)
    return bool((low <= high).all())


def _range(output: ExpectedOutput) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the largest right value of each element; for NaN, and where nothing is asked, any."""
    value = output.value.double()
    bound = torch.zeros_like(value) if output.bound is None else output.bound
    low, high = (value - bound), (value + bound)
    if output.undecided is not None:
        low, high = low.masked_fill(output.undecided, -torch.inf), high.masked_fill(output.undecided, torch.inf)
    return low.nan_to_num(nan=-torch.inf, neginf=-torch.inf, posinf=torch.inf), high.nan_to_num(
        nan=torch.inf, neginf=-torch.inf, posinf=torch.inf
    )
