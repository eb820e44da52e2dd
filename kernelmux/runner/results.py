"""The file of rows of a run: a line of JSON each, written as each item ends, and whole at every moment.

The first line says what the run is of. Whatever ends a run, its file holds all rows that had ended but at most a torn last
line, which readers leave out and the next run cuts off. One run at a time has the file; the lock goes with its process.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from kernelmux.registry.errors import ArgumentError

SCHEMA = 1
NAME, BEFORE = "rows.jsonl", "rows-before.jsonl"

Row = dict[str, Any]


@dataclass(frozen=True)
class Recorded:
    """What a file of rows holds. size: of its whole lines in bytes."""

    head: Row
    rows: tuple[Row, ...] = ()
    size: int = 0


def read(path: Path) -> Recorded:
    """The whole lines of a file; ArgumentError for one that is no file of rows."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArgumentError(f"{path}: expected a file of rows: {error.strerror}") from error
    size = data.rfind(b"\n") + 1
    try:
        lines = [json.loads(line) for line in data[:size].splitlines()]
        if not all(isinstance(line, dict) for line in lines):
            raise ValueError("a line is no object")
        if not lines or (lines[0].get("kind"), lines[0].get("schema")) != ("rows", SCHEMA):
            raise ValueError("its first line is of something else" if lines else "no line of it is whole")
    except ValueError as error:
        raise ArgumentError(f"{path}: expected a file of rows of schema {SCHEMA}: {error}") from error
    return Recorded(lines[0], tuple(lines[1:]), size)


def kept(home: Path) -> Recorded:
    """What the file in a folder has of all runs (`opened`, with `keep`); nothing where no line of it is whole."""
    path = home / NAME
    return read(path) if path.exists() and b"\n" in path.read_bytes() else Recorded({})


class ResultsFile:
    """The file of one run, which it alone writes."""

    def __init__(self, path: Path, file: int) -> None:
        self.path, self._file = path, file

    def append(self, row: Row) -> None:
        """Write a row; ArgumentError if that fails, and then the file is as it was."""
        data, size = json.dumps(row, separators=(",", ":")).encode() + b"\n", os.lseek(self._file, 0, os.SEEK_END)
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            os.ftruncate(self._file, size)
            told = f"{self.path}: a row cannot be written: {error.strerror}"
            raise ArgumentError(f"{told}; the rows so far are whole: make room and go on with --resume") from error


def folder(path: Path, option: str = "--out") -> Path:
    """The folder with all links and `..` resolved, made if it is missing; ArgumentError if it cannot be written to."""
    try:
        found = path.resolve()
        found.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=found).close()
    except (OSError, RuntimeError) as error:
        no_folder = isinstance(error, FileExistsError | NotADirectoryError)
        what = "a file is in its place" if no_folder else getattr(error, "strerror", None) or error
        raise ArgumentError(f"{option} {path}: expected a folder that can be written to: {what}") from error
    return found


@contextmanager
def opened(
    home: Path, head: Mapping[str, Any], resume: bool, keep: bool = False
) -> Iterator[tuple[ResultsFile, list[Row]]]:
    """The file of rows in a folder, and the rows that it has already: none, or those of a run of the same plan to go on
    with.

    head: what the rows are of; a run goes on only where it is the same. The rows of a run before stay beside it, as
    `rows-before.jsonl`; with `keep` those of all runs stay in the file, each behind its head. ArgumentError where another
    run has the file, or there is nothing to go on with.
    """
    path = home / NAME
    with ExitStack() as stack:
        try:
            stack.enter_context(FileLock(home / f".{NAME}.lock", timeout=0))
            before = _to_resume(path, head) if resume else kept(home) if keep else Recorded({})
            if not before.size and path.exists():
                os.replace(path, home / BEFORE)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        except Timeout:
            raise ArgumentError(f"{home}: another run writes there: wait for its end, or name another folder") from None
        except OSError as error:
            raise ArgumentError(f"{path}: expected a file that can be written to: {error.strerror}") from error
        stack.callback(os.close, file)
        os.ftruncate(file, before.size)
        made = ResultsFile(path, file)
        if not resume:
            made.append({"kind": "rows", "schema": SCHEMA, **head})
        yield made, list(before.rows) if resume else []


def _to_resume(path: Path, head: Mapping[str, Any]) -> Recorded:
    if not path.exists():
        raise ArgumentError(f"--resume: {path.parent} holds no run to go on with")
    found = read(path)
    before, now = {name: found.head.get(name) for name in head}, json.loads(json.dumps(head))
    if told := _difference("", before, now):
        raise ArgumentError(f"--resume: {path} is of another run: {told}; leave out --resume to begin anew")
    return found


def _difference(name: str, before: Any, now: Any) -> str:
    """How two values differ, "" if they do not; of objects the first field that does."""
    if before == now:
        return ""
    if isinstance(before, dict) and isinstance(now, dict):
        return next(filter(None, (_difference(key, before.get(key), now.get(key)) for key in {**before, **now})), "")
    was, value = (text if len(text) < 60 else f"{text[:56]}..." for text in map(json.dumps, (before, now)))
    return f"{name} was {was}, and is {value}"
