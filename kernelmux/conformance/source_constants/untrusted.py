"""The constants of a file that is not trusted, read by a process with limits: a text can be written to be read for ever.

python -m kernelmux.conformance.source_constants.untrusted FILE FUNCTION     # JSON
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernelmux.conformance.source_constants import reader
from kernelmux.conformance.source_constants.constant import Constant, SourcePlace

SECONDS, MEMORY = 5, 1 << 30  # of a processor, and bytes, to read a file
PATIENCE = 60.0  # seconds, on a busy machine
MOST = 4096  # constants of a file


_begun: dict[tuple[Path, str], Future[list[Constant]]] = {}
_readers = ThreadPoolExecutor(1, "kernelmux-constants")


class Unreadable(Exception):
    """A source that takes more than its reader has."""


@contextmanager
def reading(path: Path, function: str) -> Iterator[None]:
    """The constants are read beside what goes on in here, and are there when they are asked for."""
    _begun[path, function] = _readers.submit(_read, path, function)
    try:
        yield
    finally:
        if (begun := _begun.pop((path, function), None)) and not begun.cancel():
            begun.exception()


def constants(path: Path, function: str) -> list[Constant]:
    """As `reader.constants_of_file`; Unreadable where that takes too long or too much."""
    begun = _begun.get((path, function))
    return begun.result() if begun else _read(path, function)


def _read(path: Path, function: str) -> list[Constant]:
    program = [sys.executable, "-P", "-m", __name__, str(path), function]
    environment = {"PYTHONPATH": str(Path(__file__).parents[3]), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(program, capture_output=True, timeout=PATIENCE, env=environment, check=False)
    except subprocess.TimeoutExpired:
        done = None
    if done is None or done.returncode:
        raise Unreadable(
            f"the sizes of {path.name} cannot be read with {SECONDS} s of a processor and {MEMORY >> 30} GiB of memory"
        )
    return [_constant(told) for told in json.loads(done.stdout)]


def _constant(told: dict[str, Any]) -> Constant:
    place = SourcePlace(Path(told["file"]), told["line"], told["code"])
    return Constant(told["value"], place, told["kind"], told["distance"], frozenset(told["names"]))


def _row(one: Constant) -> dict[str, Any]:
    place = {"file": str(one.place.file), "line": one.place.line, "code": one.place.code}
    return {**place, "value": one.value, "kind": one.kind, "distance": one.distance, "names": sorted(one.names)}


def main(path: str, function: str) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    found = reader.constants_of_file(Path(path), function)[:MOST]
    json.dump([_row(one) for one in found], sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
