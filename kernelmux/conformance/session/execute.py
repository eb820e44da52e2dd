"""Runs one item of a plan and says how it went."""

from __future__ import annotations

import time
import traceback
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kernelmux.conformance import check as catalogue
from kernelmux.conformance.check import SPEC
from kernelmux.conformance.failures import failure_discriminants, failure_source, failure_text
from kernelmux.conformance.inputs import trials
from kernelmux.conformance.judging import asked_less
from kernelmux.conformance.judging.exclusive_memory import turn
from kernelmux.conformance.judging.probe import MUTANTS, Enough, Probe
from kernelmux.conformance.judging.trial_outcome import Record
from kernelmux.conformance.options import Options
from kernelmux.conformance.session import time_budget
from kernelmux.conformance.session.plan import BROKEN, Item
from kernelmux.conformance.session.time_budget import Share
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend import tamper_guard
from kernelmux.registry.observe.cuda_errors import MEMORY

WHOLE, IN_PART, NOT, BY_GPU = "whole", "in part", "not", "by a GPU"  # asked
OUTSIDE = "nothing that it asks is among the cases and dtypes of this run"
SHOWN = 3  # failures of an item that are shown in full


@dataclass
class Outcome:
    """What came out of an item. status: passed, failed, skipped or expected (a failure that is on record).

    asked: "whole"; in a run with a limit of time (`budget`) also "in part", "not", or "by a GPU": the ledger has it. small:
    such a run took the cases of tier smoke alone for it. card: of a run on several kinds of cards, the one it ran on.
    machine: what the process that ran it says of its GPU (`worker_facts`), {} without one. coverage: what its calls have
    run (`CallCoverage.row`), {} where that was not asked.
    """

    item: Item
    status: str
    text: str = ""
    seconds: float = 0.0
    records: list[Record] = field(default_factory=list)
    asked: str = WHOLE
    small: bool = False
    card: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    coverage: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The item, on its card where there are several."""
        return self.on_card(self.item.id)

    @property
    def label(self) -> str:
        """Its backend and variant, on its card where there are several."""
        return self.on_card(self.item.label)

    def on_card(self, name: str) -> str:
        """A name of its own, and the card where there are several."""
        return f"{name} on {self.card}" if self.card else name

    @property
    def passed(self) -> int:
        """How many trials passed."""
        return sum(r.status == "passed" for r in self.records)

    @property
    def budget(self) -> float:
        return max((r.budget for r in self.records), default=0.0)

    @property
    def reasons(self) -> list[str]:
        """The declared reasons of skips, each once."""
        return list(dict.fromkeys(r.text for r in self.records if r.status == "skipped"))

    @property
    def causes(self) -> list[str]:
        """What the failing trials come from, each once; empty unless all of them have a place and a kind."""
        found = [r.cause for r in self.records if r.status == "failed"]
        return list(dict.fromkeys(found)) if all(found) else []

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def from_dict(fields: dict[str, Any]) -> Outcome:
    """The outcome that `as_dict` took apart."""
    records = [Record(**r) for r in fields["records"]]
    return Outcome(
        Item(**fields["item"]),
        fields["status"],
        fields["text"],
        fields["seconds"],
        records,
        fields["asked"],
        fields.get("small", False),
        fields.get("card", ""),
        fields.get("machine", {}),
        fields.get("coverage", {}),
    )


def execute(item: Item, options: Options, share: Share | None = None) -> Outcome:
    """Run an item within its share of the run's time; nothing is raised but KeyboardInterrupt."""
    start = time.perf_counter()
    own = options if item.seed is None else replace(options, seed=item.seed)
    if own.elsewhere and item.backend != SPEC and not item.problem:  # the plan was made without this GPU
        item = replace(item, problem=registered.unavailable(item.backend, own.where) or "")
    outcome = _without_running(item, own) if item.problem else _run(item, own, share or Share())
    if own.device == "cuda" and _ran_out_of_memory(outcome):  # another process may have had gigabytes of it
        trials.forget()
        with turn(own.where):
            outcome = _run(item, own, share or Share())
    outcome.seconds = time.perf_counter() - start
    return outcome


def _ran_out_of_memory(outcome: Outcome) -> bool:
    """Whether a trial failed because the GPU had no memory left."""
    failed = [r for r in outcome.records if r.status == "failed"]
    return any(r.cause.endswith("OutOfMemoryError") or MEMORY.search(r.text) for r in failed)


def _without_running(item: Item, options: Options) -> Outcome:
    """An unavailable backend is skipped, unless it was asked for; a module that cannot be used fails."""
    asked = any(name.partition("/")[0] == item.backend for name in options.backends)
    if item.check != BROKEN and not asked:
        return Outcome(item, "skipped", item.problem)
    verb = "cannot be used" if item.check == BROKEN else "was asked for and cannot work here"
    return Outcome(item, "failed", f"{item.op}[{item.backend}] {verb}: {item.problem}")


def _run(item: Item, options: Options, share: Share) -> Outcome:
    if time_budget.passed_over(item, options) and not share.required:
        return Outcome(item, "skipped", time_budget.VERIFIED, asked=BY_GPU)
    spec, check = catalog.spec(item.op), catalogue.check(item.check)
    implementation = registered.variants(item.backend, item.op)[item.variant] if item.variant else None
    probe = Probe(spec, item.check, item.backend, item.variant, implementation, options)
    probe.ends = time.perf_counter() + share.seconds
    if time_budget.verified(item, options) or (item.variant and probe.brief and _asked_less(item, options)):
        probe.options = replace(options, tier="smoke")
    try:
        check.run(probe)
    except Enough:
        pass
    except Exception as error:
        probe.records.append(_crash(probe, error))
    if found := tamper_guard.patched(item.backend):
        text = f"patches {', '.join(found)}: what judges a call must stay as it is (it was put back)"
        probe.records.insert(0, _outside(probe, text))
    outcome = _judge(item, probe)
    outcome.asked = IN_PART if probe.cut else WHOLE
    outcome.small = probe.options.tier != options.tier
    outcome.coverage = probe.coverage.row() if probe.coverage else {}
    return outcome


def _asked_less(item: Item, options: Options) -> bool:
    """Whether it is about a rung that no call picks by itself. Mutants stand for those that are picked.

    Where coverage is asked such a rung gets all cases in one check, as what it runs in tier full is the question.
    """
    if options.coverage and item.check == "accuracy":
        return False
    if registered.joined(item.op, item.variant):  # by a package, which has no other check of it
        return False
    return not item.backend.startswith(MUTANTS) and asked_less.superseded(item.op, item.backend, item.variant)


def _crash(probe: Probe, error: Exception) -> Record:
    """A failure outside of all trials."""
    text = f"{failure_source.raised(error, probe.home)}\n{traceback.format_exc(limit=-4)}"
    return _outside(probe, text, failure_source.cause(error, probe.home))


def _outside(probe: Probe, text: str, cause: str = "") -> Record:
    told = failure_text.text(probe.place, None, text)
    return Record("", "", "", probe.options.seed, "failed", text=told, cause=cause)


def _skip_text(records: list[Record], probe: Probe) -> str:
    """The declared reasons; where every trial has its own, the conditions themselves."""
    reasons = list(dict.fromkeys(r.text for r in records))
    if len(reasons) <= 2 or not probe.conditions:
        return "; ".join(reasons)
    return f"no trial meets its conditions ({', '.join(probe.conditions)})"


def _judge(item: Item, probe: Probe) -> Outcome:
    records = [r for r in probe.records if r.status != "passed" or r.assertions]
    if wrong := [r for r in records if r.status == "failed"]:
        text = failure_text.summary([(r.cause, r.text) for r in wrong], SHOWN)
        return Outcome(item, "failed", "\n".join(filter(None, (text, _contrast(records)))), records=records)
    if any(r.assertions for r in records):
        return Outcome(item, "passed", records=records)
    if records:
        return Outcome(item, "skipped", _skip_text(records, probe), records=records)
    if probe.options.cases or probe.options.dtypes:
        return Outcome(item, "skipped", OUTSIDE)
    return Outcome(item, "failed", failure_text.text(probe.place, None, "the check asked nothing and declared no skip"))


def _contrast(records: list[Record]) -> str:
    """What sets the failing trials apart, in a line of its own."""
    told = [r for r in records if r.status != "skipped" and r.case]
    found = failure_discriminants.describe(
        [failure_discriminants.TrialFacts(r.status == "failed", r.axes, r.dtype, r.note) for r in told]
    )
    return f"across the trials: {found}" if found else ""
