"""Which backends a run has tested and where, and which it has not: taken from what came out, not from what was asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kernelmux.candidate import packages, sandbox
from kernelmux.conformance.check import SPEC
from kernelmux.conformance.judging.probe import MUTANTS
from kernelmux.conformance.options import Options
from kernelmux.conformance.session.execute import Outcome
from kernelmux.registry import elsewhere
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.package_versions import missing_packages
from kernelmux.registry.call import temporary_backends
from kernelmux.registry.util import cards

CPU, EMULATED = "on the CPU", "emulated on the CPU"


@dataclass(frozen=True)
class Tested:
    """places: where -> the backends that were tested there. left: the other backends, each with the reason.

    missing: backend -> what to install, of those that could run here and lack a package; the run fails by it.
    remarks: a line for each package of others that was imported by the suite, with the reason, and one about missing walls.
    """

    places: dict[str, list[str]]
    left: dict[str, str]
    missing: dict[str, str]
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        """cuda, triton emulated on the CPU; torch_ref on the CPU; not tested: theirs."""
        found = [f"{', '.join(names)} {where}" for where, names in self.places.items()] or ["no backend was tested"]
        return "; ".join([*found, *([f"not tested: {', '.join(self.left)}"] if self.places and self.left else [])])

    @property
    def notes(self) -> list[str]:
        """A line for each backend that this machine cannot have, whatever is installed; then the remarks."""
        left = [f"{name} is not tested: {why}" for name, why in self.left.items() if why and name not in self.missing]
        return [*left, *self.remarks]

    @property
    def failures(self) -> list[str]:
        """A line for each backend that could run here and lacks a package: what to install, or how to leave it out."""
        return [f"{name} is not tested: {line}" for name, line in self.missing.items()]

    def as_dict(self) -> dict[str, Any]:
        """For the results: who was tested where, who was not and why, what to install."""
        told = {"tested": self.places, "not_tested": self.left, "missing": self.missing}
        return {**told, "remarks": list(self.remarks)} if self.remarks else told


def of(chosen: Options, outcomes: Sequence[Outcome]) -> Tested:
    """What these outcomes say of every backend that is registered."""
    told: dict[str, list[Outcome]] = {name: [] for name in registered.backends() if not name.startswith(MUTANTS)}
    for outcome in outcomes:
        if outcome.item.backend != SPEC:
            told.setdefault(outcome.item.backend, []).append(outcome)
    ran = [name for name, found in told.items() if any(map(_counts, found))]
    places: dict[str, list[str]] = {}
    for name in ran:
        places.setdefault(place(chosen, name, filter(_counts, told[name])), []).append(name)
    left = {name: _why(found) for name, found in told.items() if name not in ran}
    return Tested(
        dict(sorted(places.items(), reverse=True)), left, missing(chosen, outcomes), _remarks(chosen, outcomes)
    )


def _remarks(chosen: Options, outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """Of the packages of others that were tested: whose code was imported by the suite, and what does not hold the rest."""
    items = [outcome.item for outcome in outcomes if _counts(outcome)]
    homes = {(home.name, i.backend) for i in items if i.variant and (home := elsewhere.whose(i.op, i.variant))}
    seen = {name for name, backend in homes if name in chosen.in_process or registered.composite(backend)}
    used, reasons = {i.backend for i in items}, packages.reasons(chosen.in_process)
    lines = [f"{name} was imported by the suite: {why}" for name, why in reasons.items() if name in used | seen]
    walled = sorted((used - reasons.keys() | {name for name, _ in homes} - seen) & packages.names())
    return (*lines, *(f"{', '.join(walled)}: {lack}" for lack in sandbox.not_held() if walled))


def _counts(outcome: Outcome) -> bool:
    """Whether something was asked of a kernel."""
    return not outcome.item.problem and outcome.status != "skipped"


def _why(outcomes: list[Outcome]) -> str:
    """Why nothing was asked of a backend; "" if the run was not about it."""
    found = next((o.item.problem for o in outcomes if o.item.problem), "")
    if found:
        return found.splitlines()[-1]
    return "every item of it was skipped" if outcomes else ""


def place(chosen: Options, backend: str, outcomes: Iterable[Outcome] = ()) -> str:
    """Where the kernels of a backend ran, in words: on the GPUs that its outcomes name, or as cards that nodes declare."""
    if on := sorted({o.machine.get("gpu") or o.card for o in outcomes} - {""}):
        return f"on {', '.join(on)}{_as(chosen)}"
    if chosen.device == "cuda":
        return "on a GPU"
    emulates = backend in registered.backends() and registered.backend(backend).emulates
    return EMULATED + _as(chosen) if emulates else CPU


def _as(chosen: Options) -> str:
    return f" as {cards.named(chosen.card)}" if chosen.card else ""


def missing(chosen: Options, outcomes: Iterable[Outcome] = ()) -> dict[str, str]:
    """Backend -> what to install, of those that the user has not left out by --backend; of a cluster as its nodes say."""
    named = [
        name.partition("/")[0]
        for name in chosen.backends
        if name.partition("/")[0] not in (SPEC, temporary_backends.NAME)
    ]
    if chosen.mutants or (chosen.backends and not named):
        return {}
    if chosen.elsewhere:
        lacking = ((o.machine["gpu"], o.machine.get("missing", {})) for o in outcomes if o.machine)
        told = ((name, f"on {gpu}: {line}") for gpu, lines in lacking for name, line in lines.items())
        return {name: line for name, line in told if not named or name in named}
    found: dict[str, str] = {}
    for name in named or registered.backends():
        with suppress(Exception):  # one that cannot be imported is a failing item already
            found |= missing_packages(chosen.where, [name])
    others = " ".join(name for name in registered.backends() if found and _works(name, chosen))
    hint = f" (to leave it out: --backend {others})" if others else ""
    return {name: line + hint for name, line in found.items()}


def _works(name: str, chosen: Options) -> bool:
    """Whether a backend can run on the device of a run."""
    try:
        return registered.unavailable(name, chosen.where) is None
    except Exception:
        return False
