"""The questions that a check asks about one trial: every answer is recorded, the first wrong one ends them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from kernelmux.conformance import explained, failures, saved, trials
from kernelmux.conformance.record import Record
from kernelmux.conformance.trials import Trial
from kernelmux.registry import numerics
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.memory_order import strides_of

if TYPE_CHECKING:
    from kernelmux.conformance.probe import Probe


class Failed(Exception):
    """An answer was wrong; ends the questions about one trial."""


class Enough(Exception):
    """An item asks no more: it has failed so often that more would teach nothing, or its time is over."""


class Judge:
    """Asks questions about one trial; every answer counts, the first wrong one ends it."""

    def __init__(self, probe: Probe, trial: Trial, record: Record) -> None:
        self.probe, self.trial, self.record = probe, trial, record

    def call(self, *values: Any) -> tuple[torch.Tensor, ...]:
        """The outputs of the variant for these values (default: the trial's): tensors, none of them an input.

        Whatever the call does to its inputs is undone, since other variants are given the same tensors.
        """
        values = values or self.trial.values
        before = trials.copies(values)
        try:
            outputs = self.probe.call(values)
        finally:
            changed = trials.restore(values, before)
        names = [i.name for i in self.trial.spec.inputs]
        self.require(not changed, lambda: f"the input {names[changed[0]]} was changed by the call")
        self._are_tensors(outputs)
        self._are_fresh(outputs, values)
        return outputs

    def _are_tensors(self, outputs: Sequence[Any]) -> None:
        wanted = self.trial.spec.outputs
        if len(outputs) != len(wanted):
            expected = f"a tuple of {len(wanted)} tensors" if len(wanted) > 1 else "a torch.Tensor"
            got = f"{len(outputs)} values" if len(outputs) != 1 else type(outputs[0]).__name__
            raise Failed(f"expected {expected}, got {got}")
        for output, got in zip(wanted, outputs, strict=True):
            strided = isinstance(got, torch.Tensor) and got.layout == torch.strided
            kind = str(got.layout) if isinstance(got, torch.Tensor) else type(got).__name__
            self.require(strided, f"{output.name}: expected a torch.Tensor, got {kind}")

    def _are_fresh(self, outputs: Sequence[torch.Tensor], values: Sequence[Any]) -> None:
        """No output is a view of an input."""
        for item, value in zip(self.trial.spec.inputs, values, strict=True):
            for output, got in zip(self.trial.spec.outputs, outputs, strict=True):
                shared = isinstance(value, torch.Tensor) and got.numel() > 0 and trials.same_memory(got, value)
                self.require(not shared, f"{output.name} shares its memory with the input {item.name}")

    def require(self, holds: bool, message: str | Callable[[], str]) -> None:
        """Record one answer."""
        self.record.assertions += 1
        if not holds:
            raise Failed(message if isinstance(message, str) else message())

    def well_formed(self, outputs: Sequence[torch.Tensor]) -> None:
        """Number, shape, dtype and device of the outputs are the spec's, and each is contiguous; of images every stride."""
        call = self.trial.call
        self._are_tensors(outputs)
        for output, got in zip(call.spec.outputs, outputs, strict=True):
            shape, dtype = output.shape(call), output.dtype_of(call)
            self.require(
                tuple(got.shape) == shape, f"{output.name}: expected shape {list(shape)}, got {list(got.shape)}"
            )
            self.require(got.dtype == dtype, f"{output.name}: expected dtype {SHORT[dtype]}, got {got.dtype}")
            self.require(got.device == call.device, f"{output.name}: expected it on {call.device}, got {got.device}")
            form = output.memory_format(call)
            kind = str(form).removeprefix("torch.").removesuffix("_format").replace("_", "-")
            lies = got.stride() == strides_of(shape, form) if output.order else got.is_contiguous(memory_format=form)
            self.require(lies, f"{output.name}: expected a {kind} tensor, got strides {got.stride()}")

    def accurate(self, outputs: Sequence[torch.Tensor], poison: Sequence[torch.Tensor] | None = None) -> None:
        """Every output is within its bound of the reference (integers: equal)."""
        self.well_formed(outputs)
        limits = self.trial.bounds(self.probe.arithmetics(self.trial))
        for i, (output, got) in enumerate(zip(self.trial.spec.outputs, outputs, strict=True)):
            ref, left = self.trial.references[i], poison[i] if poison else None
            if (limit := limits[i]) is None:
                self.equal(output.name, got, ref.to(got.dtype), left)
                continue
            found = numerics.compare(got, ref, limit.total)
            self.record.budget = max(self.record.budget, found.budget)
            told = partial(failures.inaccurate, output.name, got, ref, limit, found, left)
            self.require(found.passed, lambda: self._explained(told(), i, outputs, limit.total))  # noqa: B023
        if self.trial.size <= trials.SMALL:
            self.probe.earlier.append(self.trial)

    def _explained(self, text: str, i: int, outputs: Sequence[torch.Tensor], limit: torch.Tensor) -> str:
        """The text with what explains it; the tensors of an item's first failure are kept."""
        probe, name = self.probe, self.trial.spec.outputs[i].name
        lines = [text, explained.earlier(probe.earlier, probe.arithmetics, i, outputs[i])]
        if probe.options.saves and not probe.saved:
            home, how = probe.options.out, probe.implementation
            self.record.saved = probe.saved = saved.keep(home, probe.place, self.trial, how, outputs, name, limit, text)
            lines.append(f"tensors: {probe.saved}" if probe.saved else "")
        return "\n  ".join(filter(None, lines))

    def equal(self, name: str, got: torch.Tensor, want: torch.Tensor, poison: torch.Tensor | None = None) -> None:
        """Two tensors have the same bits."""
        self.require(got.shape == want.shape, f"{name}: expected shape {list(want.shape)}, got {list(got.shape)}")
        self.require(trials.same_bits(got, want), lambda: failures.unequal(name, got, want, poison))

    def remark(self, text: str) -> None:
        """Something worth reading that is no failure."""
        self.record.remarks.append(text)
