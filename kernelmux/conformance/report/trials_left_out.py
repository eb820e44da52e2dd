"""The trials that passed items did not ask: an item passes by those that ran, and a reader has to see which did not."""

from __future__ import annotations

from kernelmux.conformance.session.execute import Outcome

NOTES = 4  # of the trials left out for one reason, that are named


def lines(outcomes: list[Outcome]) -> list[str]:
    """A line for each operator, check and reason: how many trials of how many variants, and what they were about."""
    found: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for outcome in (o for o in outcomes if o.status == "passed"):
        for record in (r for r in outcome.records if r.status == "skipped"):
            key = outcome.item.op, outcome.item.check, record.text
            found.setdefault(key, []).append((outcome.label, record.note or record.dtype))
    return [_line(*key, told) for key, told in sorted(found.items())]


def _line(op: str, check: str, reason: str, told: list[tuple[str, str]]) -> str:
    labels, notes = sorted({label for label, _ in told}), list(dict.fromkeys(note for _, note in told if note))
    who = labels[0] if len(labels) == 1 else f"{len(labels)} variants"
    named = ", ".join(notes[:NOTES]) + (f" and {len(notes) - NOTES} others" if notes[NOTES:] else "")
    return f"{op}, {check}, {who}: {named}: {reason}"


def counted(outcomes: list[Outcome]) -> str:
    """The same in one line, "" if every trial was asked."""
    items = [sum(r.status == "skipped" for r in o.records) for o in outcomes if o.status == "passed"]
    some = [n for n in items if n]
    return (
        f"{sum(some)} trials of {len(some)} passed items were not asked; the report says which, and why" if some else ""
    )


def markdown(outcomes: list[Outcome]) -> str:
    """For `matrix.md`: "" if every trial was asked."""
    told = lines(outcomes)
    return "\n".join(["### Trials that were not asked", "", *(f"* {line}" for line in told)]) if told else ""
