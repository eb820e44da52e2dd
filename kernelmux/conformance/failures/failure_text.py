"""The text of a failure: what is wrong, by how much, where, whence the limit, and the command that shows it again."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass

import torch

from kernelmux.conformance.failures import error_patterns
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.options import PROGRAM
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.numerics import Bound, Comparison, ulps


@dataclass(frozen=True)
class Place:
    """Which item of the suite speaks: operator, backend/variant (or "spec"), check, the device it ran on.

    program: how the command was invoked. tier: of the run. coverage: it asked more calls, as `--coverage` does.
    """

    op: str
    label: str
    check: str
    device: str
    program: str = PROGRAM
    tier: str = "ci"
    coverage: bool = False

    def head(self, trial: Trial | None) -> str:
        """op[backend/variant] dtype case ... seed ...: what every failure begins with."""
        if trial is None:
            return f"{self.op}[{self.label}] {self.check}"
        note = f" ({trial.note})" if trial.note else ""
        return f"{self.op}[{self.label}] {self.check} {SHORT[trial.dtype]} case {trial.case}{note} seed {trial.seed:#x}"

    def reproduce(self, trial: Trial | None) -> str:
        backend = f" --backend {self.label}"
        text = f"{self.program} --op {self.op}{backend} --check {self.check}"
        if trial is not None:
            listed = any(case.name == trial.case and case.text == trial.text for case in trial.spec.cases)
            case = trial.case if listed else trial.text.replace(" ", ",")
            text += f" --case {shlex.quote(case)} --dtype {SHORT[trial.dtype]} --seed {trial.seed}"
        elif self.tier != "ci":
            text += f" --tier {self.tier}"
        text += " --coverage" if self.coverage else ""
        return text + (f" --device {self.device}" if self.device != "cpu" else "")


def text(place: Place, trial: Trial | None, message: str) -> str:
    """A failure as it is shown: head, message, command."""
    return f"{place.head(trial)}: {message}\n  reproduce: {place.reproduce(trial)}"


def summary(failed: list[tuple[str, str]], shown: int) -> str:
    """Failures of one item, as cause and text: up to `shown` that differ in more than numbers, and how many others.

    Those of one cause are one, whatever their text.
    """
    kinds: dict[str, str] = {}
    for cause, one in failed:
        kinds.setdefault(cause or re.sub(r"[-\d.]+|case \S+|dtype \S+|fp\d+|bf16|\(.*?\)", "", one), one)
    first = list(kinds.values())[:shown]
    rest = len(failed) - len(first)
    return "\n".join([*first, *([f"... and {rest} more failures of this item"] if rest else [])])


def inaccurate(
    name: str, got: torch.Tensor, ref: torch.Tensor, limit: Bound, found: Comparison, poison: torch.Tensor | None
) -> str:
    """The message for a result beyond its bound; poison marks elements that still hold the bytes of fresh memory."""
    index = found.index
    value, want = float(got[index]), float(ref[index])
    error = abs(value - want)
    off = f"; error {error:.4g} = {ulps(value, want, got.dtype):.4g} ulp" if math.isfinite(error) else ""
    lines = [
        f"budget used {found.budget:.3g} (limit 1.0)",
        f"worst {name}{list(index)}: got {value!r}, expected {want!r} (fp64){off}",
        f"bound = {limit.at(index)}",
        f"pattern: {error_patterns.describe(found.wrong, got, ref)}",
    ]
    if poison is not None:
        lines.append(_poison(poison, found.wrong))
    return "\n  ".join(lines)


def unequal(name: str, got: torch.Tensor, want: torch.Tensor, poison: torch.Tensor | None = None) -> str:
    """The message for a result that had to be equal bit for bit."""
    wrong = (got != want) & ~(got.isnan() & want.isnan()) if got.is_floating_point() else got != want
    if not wrong.any():  # differs in the sign of zero or the payload of a NaN
        wrong = torch.signbit(got.to(torch.float64)) != torch.signbit(want.to(torch.float64))
    if not wrong.any():
        return f"{name} differs in its bits, though the values are equal (the payload of a NaN)"
    index = tuple(int(i) for i in wrong.nonzero()[0])
    lines = [
        f"{name} must be equal bit for bit",
        f"first {name}{list(index)}: got {got[index].item()!r}, expected {want[index].item()!r}",
        f"pattern: {error_patterns.describe(wrong, got, want.to(torch.float64))}",
    ]
    if poison is not None:
        lines.append(_poison(poison, wrong))
    return "\n  ".join(lines)


def _poison(poison: torch.Tensor, wrong: torch.Tensor) -> str:
    left = int((poison & wrong).sum())
    if left:
        return f"poison: {left} wrong elements still hold the bytes from before the call: they were never written"
    return "poison: none left, so every wrong element was written"
