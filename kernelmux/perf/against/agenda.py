"""Which rows there are to compare: those of both trees, without those that consist of the same sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelmux.perf.against.verdict import FAILED, Judged
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows.codec import decode


@dataclass
class Agenda:
    """rows: to be timed. equal: left out because nothing of them differs. broken: rows here that cannot be imported.

    respecified: names of operators whose specs differ too, so that both sides may not do the same work.
    """

    rows: list[Row] = field(default_factory=list)
    broken: list[Judged] = field(default_factory=list)
    equal: list[str] = field(default_factory=list)
    only_base: list[str] = field(default_factory=list)
    only_here: list[str] = field(default_factory=list)
    respecified: list[str] = field(default_factory=list)


def agenda(base: Iterable[Any], here: Iterable[Any], everything: bool) -> Agenda:
    """From what the workers of both trees answered to "rows". everything: rows of equal sources too."""
    there, ours = _rows(base), _rows(here)
    made = Agenda(only_base=[row.name for row in there if row not in ours])
    for row, source in ours.items():
        if row.broken:
            made.broken.append(Judged(**row.identity, verdict=FAILED, note=row.problem))
        elif row not in there:
            made.only_here.append(row.name)
        elif source == there[row] and not everything:
            made.equal.append(row.name)
        else:
            made.rows.append(row)
    made.respecified = sorted({row.op for row in made.rows if _spec(ours[row]) != _spec(there[row])})
    return made


def _rows(answer: Iterable[Any]) -> Mapping[Row, str]:
    return {decode(Row, fields, "rows"): source for fields, source in answer}


def _spec(source: str) -> str:
    return source.rpartition(" ")[2]
