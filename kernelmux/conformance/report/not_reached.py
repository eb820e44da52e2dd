"""What no trial of a run has reached: branches of launchers, blocks of kernels. A fault there passes the suite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from kernelmux.conformance.coverage import collecting, findings, record, waivers
from kernelmux.conformance.coverage.findings import CodePart, VariantCoverage
from kernelmux.conformance.coverage.owners import owner
from kernelmux.conformance.options import Options
from kernelmux.conformance.session import worker_facts
from kernelmux.conformance.session.execute import WHOLE, Outcome
from kernelmux.conformance.session.plan import Item
from kernelmux.registry.backend import lookup as registered

REQUIRED = ("full", "huge")  # tiers that fail where something was not reached
VARIANTS = 3  # of those with the same line, that are named


class VariantName(NamedTuple):
    """A variant of an operator."""

    op: str
    backend: str
    variant: str


Coverages = dict[VariantName, VariantCoverage]


def coverages(outcomes: Iterable[Outcome]) -> Coverages:
    """What the trials of each variant have run, by the items that passed; of kernels on a GPU, what is on record."""
    rows: dict[VariantName, list[dict[str, Any]]] = {}
    for outcome in outcomes:
        if outcome.coverage and outcome.status in ("passed", "expected"):
            item = outcome.item
            rows.setdefault(VariantName(item.op, item.backend, item.variant), []).append(outcome.coverage)
    homes = {name: collecting.home(*name) for name in rows}
    found = {name: findings.of(those, home) for name, those in rows.items() if (home := homes[name])}
    for name, one in found.items():
        if not one.blocks[1]:
            one.unreached |= record.unrun(name) or set()
    return found


def nowhere(found: Coverages) -> dict[str, list[CodePart]]:
    """What no variant has run that was asked, by whose it is (`owners`): what any variant of a backend ran is reached."""
    run: dict[str, set[CodePart]] = {}
    left: dict[tuple[str, str], set[CodePart]] = {}
    for name, one in found.items():
        run.setdefault(name.backend, set()).update(one.reached)
        for part in one.unreached:
            left.setdefault((owner(name.op, name.backend, part), name.backend), set()).add(part)
    missing = {whose: sorted(parts - run[backend]) for (whose, backend), parts in sorted(left.items())}
    return {whose: parts for whose, parts in missing.items() if parts}


# --- reports --------------------------------------------------------------------------------------------------------


def lines(options: Options, outcomes: list[Outcome]) -> list[str]:
    """What variants have not reached, without what is waived: first what none has, once, then what others have."""
    found = coverages(outcomes)
    missing, elsewhere = _left(options, found)
    asked = {(op, backend): [n.variant for n in found if n[:2] == (op, backend)] for op, backend, _ in found}
    return [
        *(f"{whose}, no variant asked: not reached: {part}" for whose, parts in missing.items() for part in parts),
        *(
            f"{op}, {_who(backend, variants, asked[op, backend])}: not reached: {part}"
            for (op, backend, part), variants in sorted(elsewhere.items())
        ),
    ]


def _left(
    options: Options, found: Coverages
) -> tuple[dict[str, list[CodePart]], dict[tuple[str, str, CodePart], list[str]]]:
    """By owner what no variant has reached; by operator and backend which variants have not reached what others have."""
    waived = [w for w in waivers.all_of({name.backend for name in found}) if w.applies(options)]

    def open_(backend: str, part: CodePart) -> bool:
        return not any(w.covers(backend, part) for w in waived)

    missing = {
        whose: left
        for whose, parts in nowhere(found).items()
        if (left := [part for part in parts if open_(whose.rpartition(", ")[2], part)])
    }
    elsewhere: dict[tuple[str, str, CodePart], list[str]] = {}
    for name, one in found.items():
        for part in one.unreached:
            if part not in missing.get(owner(name.op, name.backend, part), ()) and open_(name.backend, part):
                elsewhere.setdefault((name.op, name.backend, part), []).append(name.variant)
    return missing, elsewhere


def _who(backend: str, variants: list[str], every: list[str]) -> str:
    if len(variants) == len(every) > 1:
        return f"{backend}, all {len(every)} variants"
    named = ", ".join(f"{backend}/{variant}" for variant in variants[:VARIANTS])
    return named + (f" and {len(variants) - VARIANTS} others" if variants[VARIANTS:] else "")


def counted(options: Options, outcomes: list[Outcome]) -> str:
    """The same in one line, "" where coverage was not asked."""
    found = coverages(outcomes)
    if not found:
        return ""
    branches, blocks = (
        [sum(getattr(one, kind)[i] for one in found.values()) for i in (0, 1)] for kind in ("branches", "blocks")
    )
    ran = [f"{branches[0]} of {branches[1]} branches"] + ([f"{blocks[0]} of {blocks[1]} blocks"] if blocks[1] else [])
    said = f"the trials of {len(found)} variant{'s' * (len(found) > 1)} ran {' and '.join(ran)}"
    missing, elsewhere = _left(options, found)
    said = "; ".join(filter(None, (said, unrecorded(outcomes))))
    none = sum(map(len, missing.values()))
    told = f"{none} lines of the report say what no variant has reached, {len(elsewhere)} what others have"
    return f"{said}; {told}" if none or elsewhere else said


def markdown(options: Options, outcomes: list[Outcome]) -> str:
    """For `matrix.md`: "" if everything was reached, or nothing asked."""
    told = lines(options, outcomes)
    return "\n".join(["### Not reached by any trial", "", *(f"* {line}" for line in told)]) if told else ""


def unrecorded(outcomes: list[Outcome]) -> str:
    """Of which variants on a GPU it is not on record which blocks of their kernels run, in a line; "" if there are none."""
    found = coverages(o for o in outcomes if o.machine)
    names = [
        f"{n.op}/{n.backend}/{n.variant}" for n, one in found.items() if not one.blocks[1] and record.unrun(n) is None
    ]
    some = ", ".join(names[:VARIANTS]) + (f" and {len(names) - VARIANTS} others" if names[VARIANTS:] else "")
    said = "which blocks of their kernels trials run is not on record; without a GPU, --tier ci --coverage --record says it"
    return f"{some}: {said}" if names else ""


def recorded(options: Options, items: Sequence[Item], outcomes: list[Outcome]) -> str:
    """Put what the trials of a run without a GPU have run of each kernel on record; what was written, in a line."""
    found = coverages(outcomes)
    missing = {part for parts in nowhere(found).values() for part in parts}
    whole = set(_whole(options, items, outcomes))
    ours = {n: v for n, v in found.items() if v.blocks[1] and registered.package(n.backend).startswith("kernelmux.")}
    owners = {name: f"{name.op}, {name.backend}" for name in ours}
    parts = sorted({*owners.values()} - whole)
    asked = {
        tuple(name): replace(one, unreached=one.unreached & missing)
        for name, one in ours.items()
        if owners[name] in whole
    }
    versions = {name: worker_facts.versions().get(name, "") for name in ("nvidia-cuda-nvrtc", "triton")}
    count, unknown = record.write(asked, {"made_with": versions})  # type: ignore[arg-type]
    left = f"; not {', '.join(unknown)}: what they launch is not known (--rekey)" if unknown else ""
    left += (
        f"; not {'; '.join(parts)}: expected all variants of the backend, all checks, and no failure" if parts else ""
    )
    return f"recorded: which blocks of the kernels of {count} variants trials run, in {record.FILE.name}{left}"


def results(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """For `results.jsonl`: an object for each variant, with how much ran and what did not."""
    return [
        {
            "kind": "coverage",
            **name._asdict(),
            "branches": list(one.branches),
            "blocks": list(one.blocks),
            "not_reached": [vars(part) for part in sorted(one.unreached)],
        }
        for name, one in coverages(outcomes).items()
    ]


# --- failures -------------------------------------------------------------------------------------------------------


def failures(options: Options, items: Sequence[Item], outcomes: list[Outcome]) -> list[str]:
    """What fails a run: wrong waivers, and in tiers full and huge what no variant has reached and no entry waives.

    A run of a part says nothing of what it did not ask: code of several operators counts in a run of all, that of one
    where all variants of the backend were asked everything and passed.
    """
    found = coverages(outcomes)
    if not found:
        return []
    listed = [w for w in waivers.all_of({name.backend for name in found}) if w.applies(options)]
    reached = {b: [p for n, one in found.items() if n.backend == b for p in one.reached] for _, b, _ in found}
    run = {w: reached[w.backend] if w.is_stale_where_run(options) else [] for w in listed}
    wrong = [text for w in listed if (text := waivers.stale(w, run[w]))]
    if options.tier not in REQUIRED or not options.complete or options.minutes:
        return wrong
    whole = set(_whole(options, items, outcomes))
    missing, _ = _left(options, found)
    return wrong + [
        f"{whose}: not reached: {part}" for whose, parts in missing.items() if whose in whole for part in parts
    ]


def _whole(options: Options, items: Sequence[Item], outcomes: list[Outcome]) -> Iterator[str]:
    """The owners of code of which everything was asked, and passed. items: those of the run."""
    reported = {o.item.id for o in outcomes}
    backends = {o.item.backend for o in outcomes if o.coverage}
    every = {b: [o for o in outcomes if o.item.backend == b] for b in backends}
    for backend, own in every.items():
        if not options.complete or options.only or (options.backends and backend not in options.backends):
            continue
        good = {i.op: True for i in items if i.backend == backend}
        for item in (i for i in items if i.backend == backend and i.id not in reported):
            good[item.op] = False
        for outcome in own:
            good[outcome.item.op] &= outcome.status != "failed" and outcome.asked == WHOLE
        yield from (f"{op}, {backend}" for op, fine in good.items() if fine)
        if not options.ops and all(good.values()):
            yield backend
