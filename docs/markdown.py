"""What the generated pages have in common."""

from __future__ import annotations

from collections.abc import Iterable

from kernelmux.perf import plan
from kernelmux.registry import backend as registered


def backends() -> tuple[str, ...]:
    """The backends of this repository by priority: a plugin that is installed changes no page."""
    own = (name for name in registered.backends() if registered.package(name).startswith("kernelmux.backends."))
    return tuple(sorted(own, key=plan.priority))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown; a cell may have several lines."""
    names = list(head)
    lines = [
        names,
        ["---"] * len(names),
        *([cell.replace("|", "\\|").replace("\n", "<br>") for cell in r] for r in rows),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
