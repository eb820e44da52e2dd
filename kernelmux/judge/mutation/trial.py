"""One mutant from its change to a verdict: is it a kernel, is it wrong, does the suite say so? Runs in a worker process.

Each question has a forked process, with the changed backend or with the original. The suite is asked in tier ci on a CPU,
check by check, those that find most first, until one fails.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kernelmux.conformance import check as catalogue
from kernelmux.conformance.judging import probe
from kernelmux.conformance.options import Options
from kernelmux.conformance.session import expected_failures, plan
from kernelmux.conformance.session.execute import execute
from kernelmux.judge.mutation import copied_backend, witness
from kernelmux.judge.mutation.forks import ENDED, HANGS, messages
from kernelmux.judge.mutation.population import MutatedKernel, kernel_from_dict
from kernelmux.judge.mutation.witness import RAISED, RIGHT, UNCOMPILED, WRONG, Answer
from kernelmux.registry import catalog

SERVE = f"{__name__}:serve"
# The checks that find most come first; all others follow by name.
FIRST = ("accuracy", "shapes", "thresholds", "special_values", "layout", "memory", "exact", "scalars", "state")
AGAIN = 4  # calls that turn out to be wrong with the original too, before a mutant is thrown away
ENOUGH = probe.ENOUGH
COLLECT = (50_000, 20, 100)  # compilers make many objects that stay
TIME_LIMIT = "time limit"  # what the emulator calls a launch that takes too long
PRELOADED = ("triton", "triton.language", "torch", "numpy")

KILLED, SURVIVED, EQUIVALENT, NO_KERNEL, LATE = (
    "killed",
    "survived",
    "not shown wrong",
    "no kernel",
    "not judged in time",
)
THROWN_AWAY = (EQUIVALENT, NO_KERNEL, LATE)


@dataclass(frozen=True)
class MutationLimits:
    """Seconds: of a search with its compilations, of one call of it, of all checks, and of one of them."""

    search: float = 240.0
    call: float = 60.0
    suite: float = 1200.0
    item: float = 300.0


@dataclass(frozen=True)
class TrialRow:
    """What became of a mutant. outcome: one of the above. text: why it was thrown away, or what the check said.

    witness: the call that shows it wrong, and how. check: that killed it ("hang" where its process had to be ended).
    """

    outcome: str
    text: str = ""
    witness: str = ""
    found: str = ""
    check: str = ""
    asked: int = 0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def serve(given: Any, items: Iterator[tuple[Any, float]], tell: Callable[..., None]) -> None:
    """Judge one mutant after another, as `runner.item.Serve` says.

    given: "limits", the fields of `MutationLimits`, and "folder", which goes with the run.
    """
    _prepare()
    limits, tempfile.tempdir = MutationLimits(**given["limits"]), given["folder"]
    for work, _ in items:
        begun = time.monotonic()
        row = judged(kernel_from_dict(work["kernel"]), work["seed"], work["sizes"], limits)
        tell(replace(row, seconds=round(time.monotonic() - begun, 1)).as_dict())


def _prepare() -> None:
    """Import what no mutant changes: a forked process then has it."""
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for op in catalog.names():
        catalog.spec(op)
    for name in catalogue.names():
        catalogue.check(name)
    gc.set_threshold(*COLLECT)
    gc.freeze()


def judged(kernel: MutatedKernel, seed: str, own: Sequence[int], limits: MutationLimits) -> TrialRow:
    """Search for a witness; then ask the suite."""
    if not copied_backend.compiles(kernel.backend, kernel.change):
        return TrialRow(NO_KERNEL, "it cannot be parsed")
    shown = _witness(kernel, seed, own, limits)
    if isinstance(shown, TrialRow):
        return shown
    row = _suite(kernel, limits)
    return replace(row, witness=shown.text, found=" ".join(shown.found.split())[:200])


# --- the search -------------------------------------------------------------------------------------------


def _witness(kernel: MutatedKernel, seed: str, own: Sequence[int], limits: MutationLimits) -> Answer | TrialRow:
    """A call that the mutant gets wrong and the original right, or why there is none."""
    names = kernel.op, kernel.backend, kernel.variant
    first = 0
    for _ in range(AGAIN):
        outcomes: dict[str, str] = {}
        wrong = _first_wrong(kernel, seed, own, first, outcomes, limits)
        if wrong is None:
            return _unshown(outcomes)
        own_call = wrong.turn
        if _passes(names, seed, own, own_call, limits, slow=TIME_LIMIT in wrong.found):
            return wrong
        first = own_call + 1
    return TrialRow(EQUIVALENT, "its original is wrong as well")


def _unshown(outcomes: dict[str, str]) -> TrialRow:
    if RIGHT in outcomes or not outcomes:
        return TrialRow(EQUIVALENT, "no call of the search is wrong" if outcomes else "no call of the search fits it")
    kind = UNCOMPILED if UNCOMPILED in outcomes else RAISED
    return TrialRow(NO_KERNEL, f"{kind}: {outcomes[kind][:200]}")


def _first_wrong(
    kernel: MutatedKernel, seed: str, own: Sequence[int], first: int, outcomes: dict[str, str], limits: MutationLimits
) -> Answer | None:
    """The first call of a search that shows it; outcomes: gets what the calls gave, each with a text.

    A call that raises shows something only where others do not.
    """

    def work(send: Callable[[Any], None], folder: Path) -> None:
        copied_backend.install(kernel.backend, kernel.change, folder)
        for answer in witness.search(kernel.op, kernel.backend, kernel.variant, seed, own, first, send):
            send(answer.as_dict())

    raised: Answer | None = None
    begun = Answer(first, "", "")
    count = 0
    for kind, what in messages(work, limits.search, limits.call):
        if kind == HANGS or (kind == ENDED and what):
            if not begun.text:
                outcomes.setdefault(RAISED, what)
                return None
            return replace(begun, outcome=WRONG, found=f"hang: {what}" if kind == HANGS else what)
        if kind == ENDED:
            break
        answer = Answer(**what)
        if not answer.outcome:
            begun = answer
            continue
        count += 1
        outcomes.setdefault(answer.outcome, answer.found)
        if answer.outcome == WRONG:
            return answer
        raised = answer if answer.outcome == RAISED and raised is None else raised
        if raised and RIGHT in outcomes:
            return raised
        if count >= witness.RAISES and RIGHT not in outcomes:
            return None
    return None


def _passes(
    names: tuple[str, str, str], seed: str, own: Sequence[int], turn: int, limits: MutationLimits, slow: bool
) -> bool:
    def work(send: Callable[[Any], None], folder: Path) -> None:
        send(witness.passes(*names, seed, own, turn, slow))

    return any(kind == "said" and what is True for kind, what in messages(work, 2 * limits.call, 2 * limits.call))


# --- the suite --------------------------------------------------------------------------------------------


def _suite(kernel: MutatedKernel, limits: MutationLimits) -> TrialRow:
    """Which check kills it, if one does."""

    def work(send: Callable[[Any], None], folder: Path) -> None:
        copied_backend.install(kernel.backend, kernel.change, folder)
        _ask(kernel, send)

    asked, current = 0, ""
    for kind, what in messages(work, limits.suite, limits.item):
        if kind == "said":
            current, status, text = what
            asked += bool(status)
            if status == "failed" and TIME_LIMIT in text and not _ends(kernel, current, limits):
                return TrialRow(LATE, f"{current}: {text[:200]}", asked=asked)
            if status == "failed":
                return TrialRow(KILLED, text[:400], check=current, asked=asked)
        elif kind == HANGS:
            if what.startswith("it took") or not _ends(kernel, current, limits):
                return TrialRow(LATE, f"{current}: {what}", asked=asked)
            return TrialRow(KILLED, f"{current}: {what}", check="hang", asked=asked)
        elif what:
            return TrialRow(KILLED, f"{current}: {what}", check="crash", asked=asked)
    return TrialRow(SURVIVED, asked=asked)


def _ask(kernel: MutatedKernel, send: Callable[[Any], None], only: str = "") -> None:
    """Run the items of a variant; each is told when it begins, and when it has ended."""
    label = f"{kernel.backend}/{kernel.variant}"
    options = Options(ops=(kernel.op,), backends=(label,), tier="ci", checks=(only,) if only else ())
    books = expected_failures.books(options)
    for item in sorted(plan.items(options), key=lambda item: _place(item.check)):
        known = any(entry.matches(item.name, options.device, options.tier) for b in books for entry in b.entries)
        probe.ENOUGH = ENOUGH if known else 1  # failures of an item: the first one tells, where none is known
        send((item.check, "", ""))
        outcome = expected_failures.applied(execute(item, options), options, books)
        send((item.check, outcome.status, outcome.text))


def _place(check: str) -> tuple[int, str]:
    return (FIRST.index(check) if check in FIRST else len(FIRST)), check


def _ends(kernel: MutatedKernel, check: str, limits: MutationLimits) -> bool:
    """Whether the original comes to the end of a check, and does not fail it, in the time that its mutant had."""

    def work(send: Callable[[Any], None], folder: Path) -> None:
        _ask(kernel, lambda what: send(what[1]) if what[1] else None, check)

    told = list(messages(work, limits.item, limits.item))
    return bool(told) and told[-1] == (ENDED, "") and ("said", "failed") not in told
