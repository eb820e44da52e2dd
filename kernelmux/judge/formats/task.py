"""What a format says of one kernel to write: where its reference is, what a candidate must be, and how it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kernelmux.registry.errors import KernelmuxError

MODULE, FUNCTION, DESTINATION = "module", "function", "destination"
STYLES = (MODULE, FUNCTION, DESTINATION)
Case = Mapping[str, Any]  # what a format says of one call: sizes and a seed, or a text


class FormatError(KernelmuxError, ValueError):
    """A task's file that its format does not allow, or whose reference cannot be run: the text names file and reason."""


@dataclass(frozen=True)
class Task:
    """One kernel to write, as read from files; nothing of them has run.

    name: unique within the folder. source: the file of the reference. entry: the candidate's name in its file; style: how
    it is called, a class that is built first (`module`), a function of the inputs (`function`), or one that is given its
    outputs too (`destination`). reference: the reference's name in its file. cases: the calls that must be right;
    benchmarks: those that are timed, the ranked ones among them. tolerance: what the project itself allows: shown, never
    used. scope: "" or why it is not judged. beside: files that the reference or the candidate imports, by their names.
    candidate: a file that claims to solve it, or None; texts: the candidate's files where they are no files of their own.
    """

    name: str
    format: str
    source: Path
    entry: str
    reference: str
    style: str = FUNCTION
    cases: tuple[Case, ...] = ()
    benchmarks: tuple[Case, ...] = ()
    tolerance: str = ""
    scope: str = ""
    candidate: Path | None = None
    beside: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))
    texts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise FormatError(f"{self.name}: style: expected one of {', '.join(STYLES)}, got {self.style!r}")

    def files(self, candidate: Path | None = None) -> dict[str, str]:
        """The texts that the candidate's process needs, by relative name; the first one holds the entry.

        candidate: another file than the one that was found. FormatError where there is none, or it cannot be read.
        """
        if self.texts and candidate is None:
            return dict(self.texts)
        path = candidate or self.candidate
        if path is None:
            raise FormatError(f"{self.name}: no candidate: expected a file with {self.entry}")
        found = {"submission.py" if self.beside else path.name: read(path)}
        return found | {name: read(other) for name, other in self.beside.items() if name not in found}


def read(path: Path) -> str:
    """The text of a file; FormatError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: {error}") from error
