"""What no trial of a run has reached: branches of launchers, blocks of kernels. A fault there passes the suite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from kernelmux.conformance.coverage import collecting, findings, record, waivers
from kernelmux.conformance.coverage.findings import BRANCH, CodePart, VariantCoverage
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
    """What no variant has run that was asked: "softmax, cuda" for code of an operator, "cuda" for code of several.

    A kernel belongs to its operator, with the headers that it includes.
    """
    run: dict[str, set[CodePart]] = {}
    left: dict[str, set[CodePart]] = {}
    for name, one in found.items():
        for parts, into in ((one.reached, run), (one.unreached, left)):
            for part in parts:
                into.setdefault(_owner(name, part), set()).add(part)
    missing = {owner: sorted(parts - run.get(owner, set())) for owner, parts in sorted(left.items())}
    return {owner: parts for owner, parts in missing.items() if parts}


def _owner(name: VariantName, part: CodePart) -> str:
    path = PurePosixPath(part.file)
    own = part.kind != BRANCH or name.op in (path.stem, *path.parts[:-1])
    return f"{name.op}, {name.backend}" if own else name.backend


# --- reports --------------------------------------------------------------------------------------------------------


def lines(options: Options, outcomes: list[Outcome]) -> list[str]:
    """A line for each operator, backend and what its variants have not reached, without what is waived.

    Code of several operators that no variant at all has reached comes first, once.
    """
    found = coverages(outcomes)
    waived = [w for w in waivers.all_of({name.backend for name in found}) if w.applies(options)]
    common = {owner: set(parts) for owner, parts in nowhere(found).items()}
    once: dict[tuple[str, CodePart], None] = {}
    shared: dict[tuple[str, str, CodePart], list[str]] = {}
    for name, one in found.items():
        for part in one.unreached:
            if any(w.covers(name.backend, part) for w in waived):
                continue
            if _owner(name, part) == name.backend and part in common.get(name.backend, ()):
                once[name.backend, part] = None
            else:
                shared.setdefault((name.op, name.backend, part), []).append(name.variant)
    asked = {(op, backend): [n.variant for n in found if n[:2] == (op, backend)] for op, backend, _ in found}
    return [
        *(f"{backend}, no variant asked: not reached: {part}" for backend, part in sorted(once)),
        *(
            f"{op}, {_who(backend, variants, asked[op, backend])}: not reached: {part}"
            for (op, backend, part), variants in sorted(shared.items())
        ),
    ]


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
    told = lines(options, outcomes)
    said = "; ".join(filter(None, (said, unrecorded(outcomes))))
    return f"{said}; {len(told)} lines of the report say what was not reached" if told else said


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
    found = {
        name: one
        for name, one in coverages(outcomes).items()
        if one.blocks[1] and registered.package(name.backend).startswith("kernelmux.")
    }
    whole = set(_whole(options, items, outcomes))
    asked = {tuple(name): one for name, one in found.items() if f"{name.op}, {name.backend}" in whole}
    versions = {name: worker_facts.versions().get(name, "") for name in ("nvidia-cuda-nvrtc", "triton")}
    count, unknown = record.write(asked, {"made_with": versions})  # type: ignore[arg-type]
    left = f"; not {', '.join(unknown)}: what they launch is not known (--rekey)" if unknown else ""
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
    return wrong + [
        f"{owner}: not reached: {part}"
        for owner, parts in nowhere(found).items()
        if owner in whole
        for part in parts
        if not any(w.covers(owner.rpartition(", ")[2], part) for w in listed)
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
