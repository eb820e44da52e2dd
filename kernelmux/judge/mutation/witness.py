"""An input that shows a kernel wrong: its result is beyond the bound of the reference, or the emulator reports a fault.

The suite is not asked. A search ends at the first such call, which the original then has to pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from kernelmux import emulator
from kernelmux.candidate.allocations import Guard
from kernelmux.conformance.inputs import special_numbers
from kernelmux.conformance.inputs.trials import Trial, forget
from kernelmux.conformance.judging.probe import Failed, Judge, Probe
from kernelmux.conformance.judging.trial_outcome import Record
from kernelmux.conformance.options import Options
from kernelmux.judge.mutation import inputs
from kernelmux.judge.mutation.inputs import SearchCall
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.dtypes import SHORT

TURNS = 48  # calls of a search
SECONDS = 20.0  # of a search: it draws no further call then
PATIENCE = 10.0  # seconds for one emulated launch
CLEARLY = 3  # times as fast as what was too slow has a kernel to be that is not
RAISES = 6  # calls that all raise: what raises whatever it is given is no kernel
COMPILING = ("CompileError", "CompileFailure", "CompilationError", "OutOfResources", "NvrtcUnavailableError")

RIGHT, WRONG, RAISED, UNCOMPILED = "right", "wrong", "raised", "does not compile"


@dataclass(frozen=True)
class Answer:
    """What a call of a search gave. text: of the call; found: what is wrong."""

    turn: int
    outcome: str
    text: str
    found: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def search(
    op: str,
    backend: str,
    variant: str,
    seed: str,
    own: Sequence[int],
    first: int = 0,
    begins: Callable[[dict[str, Any]], object] = bool,
) -> Iterator[Answer]:
    """Ask one call after another, from `first` on, and tell each; the end is that of the calls, or of the time.

    begins: gets each call as it begins, as an answer without an outcome.
    """
    probe = _probe(op, backend, variant)
    ends = time.monotonic() + SECONDS
    for turn in range(first, TURNS):
        if time.monotonic() > ends:
            return
        if answer := _asked(probe, seed, turn, own, begins):
            yield answer


def passes(op: str, backend: str, variant: str, seed: str, own: Sequence[int], turn: int, slow: bool = False) -> bool:
    """Whether the kernel of this process is right in one call of a search; slow: the mutant took too long for it."""
    probe = _probe(op, backend, variant)
    probe.patience /= CLEARLY if slow else 1
    answer = _asked(probe, seed, turn, own)
    return answer is not None and answer.outcome == RIGHT


def _probe(op: str, backend: str, variant: str) -> Probe:
    implementation = registered.variants(backend, op)[variant]
    probe = Probe(catalog.spec(op), "accuracy", backend, variant, implementation, Options(tier="ci"))
    probe.patience = PATIENCE
    return probe


def _asked(
    probe: Probe, seed: str, turn: int, own: Sequence[int], begins: Callable[[dict[str, Any]], object] = bool
) -> Answer | None:
    one = inputs.call(probe, seed, turn, TURNS, own)
    if one is None:
        return None
    begins(Answer(turn, "", one.text).as_dict())
    outcome, found = _judged(probe, one, turn)
    return Answer(turn, outcome, one.text, found)


def _judged(probe: Probe, one: SearchCall, turn: int) -> tuple[str, str]:
    try:
        _ask(probe, one.trial, one.guarded, one.special)
        if one.again and (again := inputs.repeated(probe, one, turn)) and not probe.reasons(again):
            _ask(probe, again, False, False)
    except Failed as failure:
        return WRONG, str(failure)
    except Exception as error:
        return _raised(error)
    finally:
        if one.again:
            forget()  # its tensors hold other numbers now
    return RIGHT, ""


def _raised(error: BaseException) -> tuple[str, str]:
    """What an exception stands for: a fault that the emulator reports, a text that is none, or anything else."""
    chain = []
    at: BaseException | None = error
    while at is not None and at not in chain:
        chain.append(at)
        at = at.__cause__ or at.__context__
    text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    if any(type(e).__name__ in COMPILING for e in chain):
        return UNCOMPILED, text
    faults = [e for e in chain if isinstance(e, emulator.EmulatorError)]
    if faults:
        return (RAISED if faults[0].kind == "unsupported" else WRONG), f"{faults[0].kind}: {faults[0].message}"
    return RAISED, text


def _ask(probe: Probe, trial: Trial, guarded: bool, special: bool) -> None:
    judge = Judge(probe, trial, Record(trial.case, SHORT[trial.dtype], trial.note, trial.seed))
    guard = Guard() if guarded else None
    with guard or nullcontext():
        outputs = judge.call()
    for made in guard.memory if guard else ():
        judge.require((damage := made.damage()) is None, f"wrote outside of {made.name}: {damage}")
    judge.well_formed(outputs)
    judge.accurate(special_numbers.within_range(trial, outputs) if special else outputs)
