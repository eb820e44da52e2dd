"""What is right for a call of a task, and how far a candidate's result may be off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernelmux.judge.formats.estimated_bound import FP32, estimate
from kernelmux.judge.formats.spec_mapping import covered
from kernelmux.judge.formats.task import FormatError
from kernelmux.judge.formats.trial import TaskTrial
from kernelmux.registry import numerics

ESTIMATED, EQUAL, OWN = "estimated", "equal", "the task's own check"
UNDECIDED = 0.01  # of an output that must be equal: beyond it a case does not tell


@dataclass(frozen=True)
class ExpectedOutput:
    """One output: its value in float64 or as integers, the bound by element (None: equal), and its own dtype.

    undecided: elements of an output that must be equal that small moves of the inputs change; they are not compared.
    """

    value: torch.Tensor
    bound: torch.Tensor | None
    dtype: torch.dtype
    undecided: torch.Tensor | None = None

    def wrong(self, got: torch.Tensor) -> str:
        """ "" or how a result is wrong, in a line."""
        if tuple(got.shape) != tuple(self.value.shape):
            return f"shape: expected {list(self.value.shape)}, got {list(got.shape)}"
        if got.dtype != self.dtype:
            return f"dtype: expected {self.dtype}, got {got.dtype}"
        if self.bound is None:
            return self._unequal(got)
        found = numerics.compare(got, self.value, self.bound)
        if found.passed:
            return ""
        at, count = list(found.index), int(found.wrong.sum())
        value, right = got[found.index].item(), self.value[found.index].item()
        many = f"{count} of {got.numel()} elements off"
        return f"{many}, worst {at}: {value:.9g} for {right:.9g}, {found.budget:.3g} times its bound"

    def budget(self, got: torch.Tensor) -> float:
        """The largest share of the bound that a result uses; 0 or infinity where it must be equal."""
        if self.wrong(got) and (self.bound is None or got.shape != self.value.shape):
            return float("inf")
        return numerics.compare(got, self.value, self.bound).budget if self.bound is not None else 0.0

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

    trial: the call; a task with a check of its own has outputs of one right answer among many, which are not compared.
    """

    trial: TaskTrial
    outputs: tuple[ExpectedOutput, ...]
    op: str
    bound: str

    def wrong(self, got: Sequence[torch.Tensor]) -> str:
        """ "" or how the outputs of a candidate are wrong, in a line."""
        if self.trial.check is not None:
            return self.trial.check(tuple(got))
        if len(got) != len(self.outputs):
            return f"expected {len(self.outputs)} outputs, got {len(got)}"
        lines = (
            f"output {i}: {text}"
            for i, (o, g) in enumerate(zip(self.outputs, got, strict=True))
            if (text := o.wrong(g))
        )
        return next(lines, "")


def of(trial: TaskTrial, seed: int, unit: float = FP32) -> ExpectedResult:
    """The right results of a call with their bounds; FormatError where the reference cannot be run, or its result is open.

    seed: of the estimate's own draws. unit: of what kernels may compute in, see `estimated_bound.estimate`.
    """
    if trial.check is not None:
        own = trial.evaluate()
        outputs = tuple(ExpectedOutput(y, None, y.dtype) for y in own)
        return ExpectedResult(trial, outputs, "", OWN)
    exact = trial.evaluate(exactly=True)
    if not exact:
        raise FormatError("the reference returns no tensor")
    if (found := covered(trial, exact)) is not None:
        own = trial.evaluate()
        output = ExpectedOutput(found.value, found.bound, own[0].dtype)
        return ExpectedResult(trial, (output,), found.op, f"derived: the spec of {found.op}")
    made = estimate(lambda leaves, exactly: trial.evaluate(leaves, exactly), trial.leaves, seed, unit)
    outputs = tuple(ExpectedOutput(e.value, e.bound, e.dtype, e.undecided) for e in made)
    return ExpectedResult(trial, outputs, "", ESTIMATED if any(o.bound is not None for o in outputs) else EQUAL)


def vacuous(trials: Sequence[ExpectedResult]) -> str:
    """Why calls of one case with different inputs tell nothing, or "": an answer that needs no input would pass them all.

    It is zeros, one number everywhere, or the same tensor whatever the inputs are. With one call only the first two show.
    """
    if not trials or trials[0].trial.check is not None:
        return ""
    for i, outputs in enumerate(zip(*(t.outputs for t in trials), strict=True)):
        if text := _empty(outputs):
            return f"output {i}: {text}"
    if all(_passing(outputs, zeros=True) for outputs in zip(*(t.outputs for t in trials), strict=True)):
        return "zeros would pass"
    if all(_passing(outputs, zeros=False) for outputs in zip(*(t.outputs for t in trials), strict=True)):
        return "one number everywhere would pass"
    if len(trials) > 1 and all(map(_ignoring, zip(*(t.outputs for t in trials), strict=True))):
        return "a result that ignores the inputs would pass"
    return ""


def _empty(outputs: Sequence[ExpectedOutput]) -> str:
    first = outputs[0]
    if first.value.numel() == 0:
        return "it has no elements"
    if first.undecided is not None and float(first.undecided.double().mean()) > UNDECIDED:
        return "rounding decides its values"
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
