"""The text of a `Patch`: modules that share operator, class and reason in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ModuleEntry:
    """A module of the model, and an operator. path: its name in the model; cls: the name of its class.

    reason: why it was left alone, None if it was swapped.
    """

    path: str
    cls: str
    op: str
    reason: str | None = None


def text(model: str, swapped: Sequence[ModuleEntry], left: Sequence[ModuleEntry], others: Iterable[str]) -> str:
    """What was swapped, what was left and why, and which classes have no counterpart."""
    modules = len({entry.path for entry in swapped})
    lines = [f"{model}: {_counted(modules)} swapped", *_lines(swapped)]
    if left:
        lines += ["left as they are:", *_lines(left)]
    if others := sorted(set(others)):
        lines.append(f"without a counterpart: {', '.join(others)}")
    return "\n".join(lines)


def _counted(number: int) -> str:
    return "1 module" if number == 1 else f"{number} modules"


def _lines(entries: Iterable[ModuleEntry]) -> Iterator[str]:
    groups: dict[tuple[str, str, str | None], list[str]] = {}
    for entry in entries:
        groups.setdefault((entry.op, entry.cls, entry.reason), []).append(entry.path)
    width = max((len(f"{len(paths)} {cls}") for (_, cls, _), paths in groups.items()), default=0)
    for (op, cls, reason), paths in groups.items():
        what = f"{len(paths)} {cls}".ljust(width)
        yield f"  {op:13} {what}  {', '.join(_patterns(paths))}{f': {reason}' if reason else ''}"


def _patterns(paths: Iterable[str]) -> list[str]:
    """Paths with * in place of the numbers of layers, and those of one parent together: layers.*.attn.{q_proj, k_proj}."""
    children: dict[str, dict[str, None]] = {}
    for path in paths:
        parent, _, name = generic(path).rpartition(".")
        children.setdefault(parent and f"{parent}.", {})[name or "(the model)"] = None
    return [parent + (next(iter(n)) if len(n) == 1 else f"{{{', '.join(n)}}}") for parent, n in children.items()]


def generic(path: str) -> str:
    """A path with * in place of the numbers of layers."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)
