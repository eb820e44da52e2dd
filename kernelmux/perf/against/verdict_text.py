"""What a comparison with another tree found: a table in the terminal, and in Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from kernelmux.perf.against.comparison import TreeComparison
from kernelmux.perf.against.verdict import AMBIGUOUS, FAILED, FASTER, LEAST, NO_BASE, SAME, SLOWER, Judged
from kernelmux.perf.report.markdown import table
from kernelmux.perf.wording import wording
from kernelmux.perf.wording.columns import Columns

STYLES = {SLOWER: "red", FAILED: "bold red", FASTER: "green", AMBIGUOUS: "yellow", NO_BASE: "yellow"}
HEAD = ("", "base us", "here us", "here / base", "interval", "A/A", "limit", "verdict", "confidence")
COLUMNS = Columns(HEAD, ("", "verdict"), ("confidence", "A/A", "base us", "here us", "limit", "interval"))
COUNTED = {SLOWER: "slower", FASTER: "faster", SAME: "the same", AMBIGUOUS: "ambiguous", FAILED: "failed"}
COUNTED |= {NO_BASE: "failed in the base"}
NAMED = 6  # rows of a list


def line(judged: Judged) -> str:
    """A row and its verdict."""
    ratio = "" if judged.ratio is None else f" {judged.ratio:.3f}"
    return f"{judged.name}: {judged.verdict}{ratio}{f': {judged.note}' if judged.note else ''}"


def show(console: Console, found: TreeComparison) -> None:
    """Print the verdicts, and what was not compared."""
    console.print(wording.where(found.machine), style="bold", markup=False, soft_wrap=True)
    console.print(f"base: {found.base}; here: {found.here}", markup=False, highlight=False, soft_wrap=True)
    rows = [([Text(cell) for cell in _cells(row)], STYLES.get(row.verdict)) for row in found.rows]
    if rows:
        console.print(COLUMNS.table(console, rows))
        console.print(legend(found), style="dim", highlight=False, soft_wrap=True)
    for text in notes(found):
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.print(summary(found), style="bold", highlight=False, soft_wrap=True)


def markdown(found: TreeComparison) -> str:
    """The same as a document."""
    parts = [f"# {found.here} against {found.base}, {found.date}", wording.where(found.machine), f"`{found.command}`"]
    parts += [f"**{summary(found)}**"]
    parts += [table(("row", *HEAD[1:]), map(_cells, found.rows)), legend(found)] if found.rows else []
    return "\n\n".join([*parts, *notes(found)]) + "\n"


def _cells(row: Judged) -> list[str]:
    if row.ratio is None or row.low is None or row.high is None or row.noise is None or row.limit is None:
        return [row.name, *[""] * 6, row.verdict, ""]
    times = (wording.microseconds(row.base_us), wording.microseconds(row.here_us))
    interval = f"{row.low:.3f} to {row.high:.3f}"
    return [
        row.name,
        *times,
        f"{row.ratio:.3f}",
        interval,
        f"{row.noise:.1%}",
        f"{row.limit:.1%}",
        row.verdict,
        _confidence(row.confidence),
    ]


def _confidence(value: float | None) -> str:
    return "" if value is None else "> 99.9 %" if value > 0.999 else f"{value:.1%}"


def legend(found: TreeComparison) -> str:
    """What the columns mean."""
    return (
        "here / base: of median times, more than 1 is slower; interval: where that ratio lies with"
        f" {found.confidence:.0%} confidence; A/A: how far the base may lie from itself; limit: the larger of that and"
        f" {LEAST:.1%}; SLOWER, FASTER: the interval lies beyond the limit, in two sets of processes; SAME: within it"
    )


def notes(found: TreeComparison) -> Iterator[str]:
    """Sentences on rows and on what was not compared."""
    yield from (line(row) for row in found.rows if row.note)
    for operator in found.respecified:
        yield f"{operator}: its spec differs in the two trees, which may not do the same work"
    yield from _listed("only in the base, or only there able to run", found.only_base)
    yield from _listed("only here, or only here able to run", found.only_here)
    if found.equal:
        yield f"not timed, as their sources and specs are equal: {len(found.equal)} rows (--all times them)"


def _listed(what: str, names: tuple[str, ...]) -> Iterator[str]:
    if names:
        more = f" and {len(names) - NAMED} more (against.json)" if len(names) > NAMED else ""
        yield f"{what}: {', '.join(names[:NAMED])}{more}"


def summary(found: TreeComparison) -> str:
    """How many rows have which verdict."""
    counts = {text: len(found.having(verdict)) for verdict, text in COUNTED.items()}
    told = ", ".join(f"{count} {text}" for text, count in counts.items() if count)
    return told or ("no row differs" if found.equal else "nothing to compare: no row that can run is in both trees")
