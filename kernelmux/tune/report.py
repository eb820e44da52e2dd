"""What a search says at its end, what tables hold, and the table of the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from kernelmux.registry.backend import tuned_configs
from kernelmux.registry.backend.device_tables import Table
from kernelmux.registry.backend.search_space import Config
from kernelmux.registry.backend.tuned_configs import TunedConfig
from kernelmux.registry.util.text_tables import counted
from kernelmux.tune.search import Search

NOT_REACHED = "the search ended before"
NOT_RIGHT = "no configuration is right, or the search ended before the finals"


def written(config: Config) -> str:
    """A configuration in one line."""
    return " ".join(f"{name}={value}" for name, value in config.items())


def show(console: Console, searches: list[Search]) -> None:
    """The outcome of each search."""
    for search in searches:
        console.print(search.job.name, style="bold", markup=False, soft_wrap=True)
        for line in _lines(search):
            console.print(f"  {line}", markup=False, soft_wrap=True)


def _lines(search: Search) -> Iterator[str]:
    if (found := search.found) is None:
        yield f"not searched: {search.problem or NOT_REACHED}"
        return
    refused = sum(found.refused.values())
    size = len(found.chosen) + found.left + refused
    left = f"{refused} refused unseen, {found.left} left out (--most)"
    yield f"{counted(size, 'configuration')}: {left}, {len(found.chosen)} tried"
    yield from (f"refused: {count} for {reason}" for reason, count in sorted(found.refused.items()))
    yield from (f"dropped: {count} for {reason}" for reason, count in search.problems.most_common())
    yield f"rule: {written(found.rule)}"
    yield from _outcome(search)


def _outcome(search: Search) -> Iterator[str]:
    if (measured := search.measured) is None:
        if search.problem or search.seen:
            yield f"not timed: {search.problem or NOT_RIGHT}"
        return
    yield from (f"WRONG: {written(config)}: {why}" for config, why in measured.wrong)
    times = f"rule {measured.rule_us:.1f} us, fastest {measured.us:.1f} us ({measured.ratio:.2f}x)"
    yield f"{times}: {written(measured.config)}"
    if search.refusal:
        yield f"REFUSED by the suite: {search.refusal}"
    elif not measured.gains:
        yield "the rule stays: the gain is within noise (2 %)"
    elif search.refusal is None:
        yield "not written: the suite was not asked"


def listing(folder: Path) -> list[str]:
    """The entries of all tables in a folder; behind one that is ignored, or older, the reason."""
    lines = []
    for path in tuned_configs.TABLES.at(folder).place.all():
        table = tuned_configs.TABLES.read(path)
        lines.append(f"{table.gpu}, {path}: {counted(len(table.rows), 'configuration')}")
        lines += [f"  {_listed(entry)}" for entry in table.rows]
    return lines or [f"no tables in {folder}"]


def _listed(entry: TunedConfig) -> str:
    gain = f"{entry.rule_us:.1f} -> {entry.us:.1f} us"
    told = f"{entry.op} {entry.backend}/{entry.variant} {entry.workload} {entry.dtype}: {gain}, {written(entry.config)}"
    if entry.stale:
        return f"{told} (stale, ignored: {entry.stale})"
    return f"{told} (older: {entry.older})" if entry.older else told


def markdown(folder: Path) -> str:
    """The tables of a page: what tuning gained over the rule, for each GPU."""
    tables = [tuned_configs.TABLES.read(path) for path in tuned_configs.TABLES.at(folder).place.all()]
    return "\n\n".join(_table(table) for table in tables if table.rows) or "No GPU has a table yet."


def _table(table: Table[TunedConfig]) -> str:
    head = ["| call | variant | rule, us | tuned, us | gain | configuration |", "|---|---|---:|---:|---:|---|"]
    rows = [
        f"| `{e.op}` {e.workload} {e.dtype} | {e.backend}/{e.variant} | {e.rule_us:.1f} | {e.us:.1f} "
        f"| {e.rule_us / e.us:.2f}x{', stale' if e.stale else ''} | {written(e.config)} |"
        for e in table.rows
    ]
    found_with = table.rows[0].versions
    said = ", ".join(f"{name} {version}" for name, version in found_with.items())
    return "\n".join([f"{table.gpu}, {said}:", "", *head, *rows])
