"""Was the output of the timed call right? The spec's own bound says so, on a sample where the whole is too large."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch

from kernelmux.perf.timing import sampling
from kernelmux.registry.backend import Implementation, bounds
from kernelmux.registry.spec import Call, exact_arguments, numerics

ATTEMPTS = 3
Found = TypeVar("Found")


class WrongOutput(AssertionError):
    """The timed call computed something else."""


@dataclass(frozen=True)
class Checked:
    """budget: the largest share of the bound in use. sampled: what was checked, "" for everything."""

    budget: float
    sampled: str


class Oracle:
    """The float64 reference of one call, computed once for all variants of a group, before any of them runs.

    most: elements at most; a larger call is checked on a sample.
    """

    def __init__(self, call: Call, most: float = math.inf) -> None:
        self.call = call
        self.limit = min(sampling.room(call) / sampling.LIVE, most)
        self.cuts: tuple[sampling.Cut, ...] = ()
        self.arguments: tuple[Any, ...] = ()
        self.references: tuple[torch.Tensor, ...] = ()
        self._within(self._prepare)

    def _within(self, work: Callable[[], Found]) -> Found:
        """What the work gives; where memory is too small it is done again, each time on a sample of a quarter."""
        for _ in range(ATTEMPTS - 1):
            try:
                return work()
            except torch.OutOfMemoryError:
                self.limit = min(self.limit, sampling.work(self.call)) / 4
                self.arguments = self.references = ()
            torch.cuda.empty_cache()  # behind the handler, whose error holds the tensors of the attempt
        return work()

    def _prepare(self) -> None:
        self.cuts = sampling.choose(self.call, self.limit)
        arguments = tuple(self.call.arguments.values())
        for cut in self.cuts:
            arguments = sampling.cut_arguments(self.call, arguments, cut)
        small = replace(self.call, arguments=dict(zip(self.call.arguments, arguments, strict=True)))
        self.arguments = exact_arguments(small)
        result = self.call.spec.reference(*self.arguments)
        self.references = result if isinstance(result, tuple) else (result,)

    def check(self, result: Any, implementation: Implementation, slack: float = 1.0) -> Checked:
        """The share of `slack` times the bound that a result uses; WrongOutput if it is more than all of it."""
        outputs = result if isinstance(result, tuple) else (result,)
        self._check_form(outputs)
        return self._within(partial(self._checked, outputs, implementation, slack))

    def _checked(self, outputs: tuple[Any, ...], implementation: Implementation, slack: float) -> Checked:
        if not self.references:
            self._prepare()
        budget = 0.0
        kept = sampling.cut_outputs(outputs, self.cuts)
        for i, (out, reference) in enumerate(zip(kept, self.references, strict=True)):
            budget = max(budget, self._budget(i, out, reference, implementation, slack))
        return Checked(budget, ", ".join(map(str, self.cuts)))

    def _check_form(self, outputs: tuple[Any, ...]) -> None:
        wanted = self.call.spec.outputs
        if len(outputs) != len(wanted):
            raise WrongOutput(f"expected {len(wanted)} outputs, got {len(outputs)}")
        for output, got in zip(wanted, outputs, strict=True):
            shape, dtype = output.shape(self.call), output.dtype_of(self.call)
            if tuple(got.shape) != shape or got.dtype != dtype:
                raise WrongOutput(f"{output.name}: expected {dtype} {list(shape)}, got {got.dtype} {list(got.shape)}")

    def _budget(
        self, i: int, out: torch.Tensor, reference: torch.Tensor, implementation: Implementation, slack: float
    ) -> float:
        name = self.call.spec.outputs[i].name
        if not out.dtype.is_floating_point:
            if not torch.equal(out, reference):
                raise WrongOutput(f"{name}: differs from the reference, which is exact")
            return 0.0
        how = implementation.computes(name, self.call.dtype, self.call.scalars)
        limit = (
            slack * bounds.limit(self.call, i, how, reference, self.arguments).total
        )  # its parts, as large, are released
        comparison = numerics.compare(out, reference, limit)
        if not comparison.passed:
            at, share = comparison.index, float(comparison.wrong.double().mean())
            raise WrongOutput(
                f"{name}: wrong at {list(at)}: got {out[at].item():.6g}, expected {reference[at].item():.6g} within"
                f" {limit[at].item():.3g} (budget {comparison.budget:.3g}); {share:.2%} of the checked elements are wrong"
            )
        return comparison.budget
