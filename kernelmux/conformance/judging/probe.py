"""What a check works with: the trials it may run, the call, and judges that record every answer."""

from __future__ import annotations

import math
import pdb
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from kernelmux import emulator
from kernelmux.candidate import implementation as candidate
from kernelmux.conformance.coverage import collecting
from kernelmux.conformance.failures import failure_bundle, failure_source, failure_text, stale_result
from kernelmux.conformance.inputs import dtype_rotation, generate, trials
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging import expected_warnings, first_call, fitted_cases, returned
from kernelmux.conformance.judging.trial_outcome import Record
from kernelmux.conformance.options import Options
from kernelmux.registry.backend import Implementation, tamper_guard
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import checked_results, dispatch
from kernelmux.registry.cases import Case
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.errors import SpecError
from kernelmux.registry.spec import OpSpec, numerics
from kernelmux.registry.util.memory_format import strides_of

KEPT = 16  # trials whose results are recognised in a later call
ENOUGH = 8  # failures of one item; after these the rest of it is not run
PATIENCE = {"full": 600.0, "huge": 3600.0}  # seconds for one emulated launch, else 60
MUTANTS = "mutants_"  # how the backends of `mutation` are called


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
            with expected_warnings.noted(self.remark):
                outputs = self.probe.call(values)
        finally:
            changed = trials.restore(values, before)
        names = [i.name for i in self.trial.spec.inputs]
        self.require(not changed, lambda: f"the input {names[changed[0]]} was changed by the call")
        self._are_tensors(outputs)
        self.require(not (problem := returned.shared(self.trial.spec, outputs, values)), problem)
        return outputs

    def _are_tensors(self, outputs: Sequence[Any]) -> None:
        if problem := checked_results.malformed(self.trial.spec, outputs[0] if len(outputs) == 1 else tuple(outputs)):
            raise Failed(problem)
        self.require(not (problem := returned.odd(self.trial.spec, outputs)), problem)

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
            told = partial(failure_text.inaccurate, output.name, got, ref, limit, found, left)
            self.require(found.passed, lambda: self._explained(told(), i, outputs, limit.total))  # noqa: B023
        if self.trial.size <= trials.SMALL:
            self.probe.earlier.append(self.trial)

    def _explained(self, text: str, i: int, outputs: Sequence[torch.Tensor], limit: torch.Tensor) -> str:
        """The text with what explains it; the tensors of an item's first failure are kept."""
        probe, name = self.probe, self.trial.spec.outputs[i].name
        lines = [text, stale_result.earlier(probe.earlier, probe.arithmetics, i, outputs[i])]
        if probe.options.saves and not probe.saved:
            kept = (self.trial, probe.implementation, outputs, name, limit, text)
            self.record.saved = probe.saved = failure_bundle.keep(probe.options.out, probe.place, *kept)
            lines.append(f"tensors: {probe.saved}" if probe.saved else "")
        return "\n  ".join(filter(None, lines))

    def equal(self, name: str, got: torch.Tensor, want: torch.Tensor, poison: torch.Tensor | None = None) -> None:
        """Two tensors have the same bits."""
        self.require(got.shape == want.shape, f"{name}: expected shape {list(want.shape)}, got {list(got.shape)}")
        self.require(trials.same_bits(got, want), lambda: failure_text.unequal(name, got, want, poison))

    def remark(self, text: str) -> None:
        """Something worth reading that is no failure."""
        self.record.remarks.append(text)


class Probe:
    """One check on one variant of one operator (or on its spec): runs calls and collects records."""

    def __init__(
        self,
        spec: OpSpec,
        check: str,
        backend: str,
        variant: str,
        implementation: Implementation | None,
        options: Options,
    ) -> None:
        self.spec, self.backend, self.variant, self.options = spec, backend, variant, options
        self._implementation = implementation
        self.label = f"{backend}/{variant}" if variant else backend
        self.place = failure_text.Place(
            spec.name, self.label, check, options.device, options.program, options.tier, options.coverage
        )
        self.device = options.where
        self.records: list[Record] = []
        self.saved = ""  # the folder with the tensors of the first failure
        self.earlier: deque[Trial] = deque(maxlen=KEPT)  # trials whose results were right
        self.ends = math.inf  # by time.perf_counter: behind it no trial begins, but a first one
        self.cut = False  # whether there was one that did not begin
        self.patience = PATIENCE.get(options.tier, 60.0)  # seconds for one emulated launch
        apart = implementation is not None and candidate.process_of(implementation.fn)
        asked = bool(variant) and options.coverage and not apart
        self.coverage = collecting.begun(spec.name, backend, variant, self.emulated) if asked else None
        self._listens = bool(variant) and not (apart or self.emulated or backend.startswith(MUTANTS))

    @property
    def implementation(self) -> Implementation:
        if self._implementation is None:
            raise TypeError(f"{self.place.check} judges the spec of {self.spec.name}: there is no implementation")
        return self._implementation

    @cached_property
    def home(self) -> Path | None:
        """The folder of the package that the variant comes from."""
        return collecting.home(self.spec.name, self.backend, self.variant) if self.variant else None

    @property
    def conditions(self) -> list[str]:
        """What the variant declares, in words."""
        return [c.text for c in self._implementation.requires] if self._implementation else []

    @property
    def failed(self) -> int:
        """How many trials have failed so far."""
        return sum(r.status == "failed" for r in self.records)

    @property
    def emulated(self) -> bool:
        return self.device.type == "cpu" and registered.backend(self.backend).emulates

    @property
    def verified(self) -> bool:
        """Whether calls are emulated of a variant that a GPU has verified: what that cannot see is asked, once."""
        return self.emulated and f"{self.spec.name}/{self.label}" in self.options.verified

    def arithmetics(self, trial: Trial) -> list[numerics.Arithmetic]:
        """How the variant may accumulate each output: as it declares, but in tf32 only where the call asks for that.

        A bound for operands rounded to tf32 is thousands of times looser: a declaration does not make it right.
        """
        return [self._arithmetic(o.name, trial) for o in self.spec.outputs]

    def _arithmetic(self, output: str, trial: Trial) -> numerics.Arithmetic:
        found = self.implementation
        if found.accumulates(output) == numerics.TF32.name:  # mma is tf32 in fp32 where precision="tf32" asks for it
            found = replace(found, arithmetic=numerics.MMA.name)
        return found.computes(output, trial.dtype, trial.call.scalars)

    def reasons(self, trial: Trial) -> tuple[str, ...]:
        """Conditions of the variant that this call does not meet: the only reasons to skip it."""
        return dispatch.verdicts(trial.call, self.backend, self.variant)[0].reasons

    def call(self, values: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """One call through the dispatcher; on the emulator with all its checks, on a GPU until it has finished."""
        listens = tamper_guard.Alarm(self.spec, self.backend) if self._listens else nullcontext()
        with self.environment(), listens as alarm, first_call.watched(self.spec.name, self.label), self.noted():
            self._listens = False  # one call tells, and hearing takes time
            try:
                result = dispatch.call(self.spec, tuple(values), self.label)
            except SpecError as error:  # it says everything, and no line of the implementation raised it
                raise Failed(str(error)) from error
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        if alarm and alarm.heard:
            raise Failed(alarm.heard)
        if problem := checked_results.malformed(self.spec, result):
            raise Failed(problem)
        return result if isinstance(result, tuple) else (result,)

    def noted(self) -> AbstractContextManager[None]:
        """Around a call whose result is judged: what it runs counts as reached, where coverage is asked."""
        return self.coverage.calling() if self.coverage else nullcontext()

    @contextmanager
    def environment(self, grad: bool = False) -> Iterator[None]:
        """What is set around every call; grad: the gradient mode stays as the caller has it."""
        with ExitStack() as stack:
            stack.enter_context(expected_warnings.quiet())
            if not grad:
                stack.enter_context(torch.no_grad())
            if self.emulated:
                stack.enter_context(emulator.checks("full"))
                stack.enter_context(emulator.time_limit(self.patience))
            yield

    # --- trials -------------------------------------------------------------------------------------------

    def make(self, case: Case, dtype: torch.dtype, seed: int | None = None) -> Trial:
        return trials.trial(self.spec, case, dtype, self.options.seed if seed is None else seed, self.device)

    def pairs(self) -> list[tuple[Case, torch.dtype]]:
        """Every case of the tier in every dtype."""
        return [(c, d) for c in self.cases for d in self.options.dtypes_of(self.spec, c)]

    @cached_property
    def cases(self) -> list[Case]:
        """The cases of the tier; if the variant can run none of them, small ones made to its conditions as well."""
        listed = self.options.cases_of(self.spec)
        if self._implementation is None or self.options.cases or not self._implementation.requires:
            return listed
        filled = (c for c in listed if all(0 not in s for s in c.shapes.values()))
        if any(not self.reasons(self.make(c, d)) for c in filled for d in self.options.dtypes_of(self.spec, c)):
            return listed
        return [*listed, *fitted_cases.fitted(self.spec, self.implementation.requires, self.options)]

    @property
    def brief(self) -> bool:
        """Whether dtypes take turns: calls are emulated, the tier has to be short, and no case or dtype is asked for."""
        chosen = self.options.cases or self.options.dtypes
        return self.emulated and self.options.tier in ("smoke", "ci") and not chosen

    def turns(self) -> list[tuple[Case, torch.dtype]]:
        """Every case of the tier: in every dtype on fast machines, in one dtype in turn where a call is emulated.

        Another seed begins with another dtype, so that as many seeds as there are dtypes ask for every pair.
        """
        if not self.brief:
            return self.pairs()
        cases = [c for c in self.cases if self.options.dtypes_of(self.spec, c)]
        return [(case, next(self._in_turn(case, turn))) for turn, case in enumerate(cases)]

    def _in_turn(self, case: Case, turn: int) -> Iterator[torch.dtype]:
        """The dtypes of a case that the variant can run, beginning with the one whose turn it is."""
        order = dtype_rotation.ordered(self.options.dtypes_of(self.spec, case), turn + self.options.seed)
        return dtype_rotation.able(order, lambda dtype: not self.reasons(self.make(case, dtype)))

    def able(self, trial: Trial) -> bool:
        """Whether the variant declares that it can run the trial; if not, that is recorded as a skip."""
        if why := self.reasons(trial):
            self.skip(trial, "; ".join(why))
        return not why

    def all(self) -> Iterator[Trial]:
        """Every trial of the tier that the variant can run; where a run is `brief`, of most cases in one dtype in turn.

        The cases of tier smoke come in every dtype all the same; of what is `verified` in one of each kind and size.
        """
        smoke = [pair for pair in self.pairs() if pair[0].tier == "smoke"] if self.brief else []
        if self.verified and smoke:
            cases = enumerate(dict.fromkeys(case for case, _ in smoke))
            smoke = [(c, d) for turn, c in cases for d in dtype_rotation.of_each_size(self._in_turn(c, turn))]
        for case, dtype in dict.fromkeys((*smoke, *self.turns())):
            trial = self.make(case, dtype)
            if self.able(trial):
                yield trial

    def sample(self, count: int, least: int = 16, where: Callable[[Trial], bool] = lambda trial: True) -> list[Trial]:
        """A few small trials that compute something: shapes, dtypes and scalars in turn; one trial in tier smoke."""
        count = 1 if self.options.tier == "smoke" else count
        found: list[Trial] = []
        for turn, case in enumerate(self.small_cases(least)):
            case = self._with_scalars(case, len(found))
            allowed = self.options.dtypes_of(self.spec, case)
            order = dtype_rotation.ordered(allowed, len(found) + self.options.seed)
            able = next((t for d in order if where(t := self.make(case, d)) and not self.reasons(t)), None)
            found += [able] if able else []
            if len(found) == count or turn > 40:
                break
        if not found:
            for case, dtype in self.pairs():
                self.able(self.make(case, dtype))
        return found

    def _with_scalars(self, case: Case, turn: int) -> Case:
        """Every second case of a sample takes other values of the scalars that it leaves to their defaults."""
        if turn % 2 == 0 or self.options.cases:
            return case
        made = generate.varied(self.spec, case, turn // 2 + self.options.seed)
        fits = any(generate.permitted(self.spec, made, d) for d in self.options.dtypes_of(self.spec, case))
        return made if fits else case

    def small_cases(self, least: int) -> list[Case]:
        """Cases from small to large, at least `least` elements in the largest tensor; the rest after them."""

        def size(case: Case) -> tuple[bool, int]:
            largest = max(torch.Size(s).numel() for s in case.shapes.values())
            return largest < least, largest

        cases = [c for c in self.cases if all(0 not in s for s in c.shapes.values())]
        return sorted(cases, key=size)

    def kinds(self, least: int = 16, dtype: torch.dtype | None = None) -> list[Case]:
        """The smallest case of each kind of call that computes something (in a dtype): ranks, which axis it names."""
        found: dict[object, Case] = {}
        for case in self.small_cases(least):
            if dtype is None or dtype in self.options.dtypes_of(self.spec, case):
                found.setdefault(generate.kind(self.spec, case), case)
        return list(found.values())

    # --- records ------------------------------------------------------------------------------------------

    @contextmanager
    def judge(self, trial: Trial) -> Iterator[Judge]:
        """Questions about one trial; whatever is raised inside becomes its failure."""
        start = time.perf_counter()
        if start > self.ends and any(r.assertions for r in self.records):
            self.cut = True
            raise Enough
        record = Record(trial.case, SHORT[trial.dtype], trial.note, trial.seed)
        self.records.append(record)
        try:
            yield Judge(self, trial, record)
            if not record.assertions:
                raise Failed("the check asked nothing")
        except Failed as failure:
            self._fail(record, trial, str(failure))
        except Exception as error:
            record.cause = failure_source.cause(error, self.home)
            self._fail(record, trial, failure_source.raised(error, self.home))
        finally:
            record.seconds = time.perf_counter() - start
            record.axes = failure_source.axes(trial)
        if self.failed >= ENOUGH:
            raise Enough

    def _fail(self, record: Record, trial: Trial, message: str) -> None:
        record.status, record.text = "failed", failure_text.text(self.place, trial, message)
        if self.options.pdb:
            print(f"{record.text}\n  up: the frames of the judge, with got, ref, limit and self.trial; c: on; q: end")
            pdb.post_mortem(sys.exc_info()[2])

    def skip_all(self, reason: str) -> None:
        """The whole item does not apply, for a declared reason."""
        self.records.append(Record("", "", "", self.options.seed, "skipped", text=reason))

    def skip(self, trial: Trial, reason: str) -> None:
        self.records.append(Record(trial.case, SHORT[trial.dtype], trial.note, trial.seed, "skipped", text=reason))
