"""What a format says of one kernel to write: where its reference is, what a candidate must be, and how it is asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kernelmux.registry.errors import KernelmuxError

MODULE, FUNCTION, DESTINATION = "module", "function", "destination"
Case = Mapping[str, Any]  # what a format says of one call: sizes and a seed, or a text


class FormatError(KernelmuxError, ValueError):
    """A task's file that its format does not allow, or whose reference cannot be run: the text names file and reason."""


@dataclass(frozen=True)
class Task:
    """One kernel to write, as read from files; nothing of them has run.

    name: unique within the folder. source: the file of the reference, or the folder of an operator of torch. reference: the
    reference's name in its file. cases: the calls that must be right; benchmarks: those that are timed, the ranked ones
    among them. tolerance: what the project itself allows: shown, never used. scope: "" or why it is not judged. beside:
    files that the reference and a solution import, by their names.
    """

    name: str
    format: str
    source: Path
    reference: str
    cases: tuple[Case, ...] = ()
    benchmarks: tuple[Case, ...] = ()
    tolerance: str = ""
    scope: str = ""
    beside: Mapping[str, Path] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        beside = {name: str(path) for name, path in self.beside.items()}
        return {**asdict(self), "source": str(self.source), "beside": beside}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Task:
        """The task that `as_json` told of."""
        beside = {name: Path(path) for name, path in told["beside"].items()}
        lists = {name: tuple(told[name]) for name in ("cases", "benchmarks")}
        return cls(**{**told, **lists, "source": Path(told["source"]), "beside": beside})


@dataclass(frozen=True)
class Solution:
    """A file that claims to solve a task.

    files: the texts that its process is given, by relative name; the first one holds the entry. entry: the name of the
    class or function in it; style: how it is called, a class that is built first (`module`), a function of the inputs
    (`function`), or one that is given its outputs too (`destination`). scope: "" or why it is not judged. note: what is to
    be said of it in any case.
    """

    path: Path
    entry: str
    files: Mapping[str, str]
    style: str = FUNCTION
    scope: str = ""
    note: str = ""

    @property
    def sha256(self) -> str:
        """Of all its files, with their names."""
        return hashlib.sha256(json.dumps(sorted(self.files.items())).encode()).hexdigest()


def read(path: Path) -> str:
    """The text of a file; FormatError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: {error}") from error
