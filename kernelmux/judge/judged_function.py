"""A function before a judge: what is asked of it, and the process in which it answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kernelmux.candidate import implementation
from kernelmux.candidate.limits import Limits
from kernelmux.candidate.process import CandidateProcess
from kernelmux.candidate.worker_process import Worker
from kernelmux.conformance import options
from kernelmux.conformance.judging import returned
from kernelmux.conformance.options import Options
from kernelmux.conformance.session.execute import Outcome, execute
from kernelmux.conformance.session.plan import Item
from kernelmux.conformance.source_constants import untrusted
from kernelmux.registry.call import temporary_backends

REST = "rest"  # the item of a process that goes on unasked
LOOKS = 5.0  # seconds from a look at what a process does unasked to the next one
SETTLES = (0.0, 0.3, 1.0)  # seconds that it is given to come to rest, one after another


@dataclass(frozen=True)
class AskedItem:
    """An item that is asked. place: among those of its verdict; name: that of the check in the verdict."""

    place: int
    item: Item
    options: Options
    name: str

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**vars(self), "item": asdict(self.item), "options": self.options.as_dict()}

    @staticmethod
    def from_dict(fields: dict[str, Any]) -> AskedItem:
        """What `as_dict` took apart."""
        read = {"item": Item(**fields["item"]), "options": options.from_dict(fields["options"])}
        return AskedItem(**{**fields, **read})


class JudgedFunction:
    """A function of which items are asked, one after another. process: its own."""

    def __init__(self, process: CandidateProcess | None) -> None:
        self.process = process
        self._looked = -LOOKS

    def ask(self, asked: AskedItem) -> list[Outcome]:
        """What came of an item, and that its process does not rest, if that is so."""
        outcome = execute(asked.item, asked.options)
        found = [replace(outcome, item=replace(outcome.item, check=asked.name))]
        if self.process and time.monotonic() >= self._looked + LOOKS:
            if problem := _restless(self.process):
                text = f"nothing is asked of its process, and {problem}"
                found.append(Outcome(replace(asked.item, check=REST), "failed", text))
            self._looked = time.monotonic()
        return found

    def launched(self) -> dict[str, int]:
        """The kernels that were launched so far, with how often."""
        return dict(self.process.launched) if self.process else {}

    def operators(self) -> set[str]:
        """The operators of torch that the process says it has called."""
        return self.process.operators if self.process else set()


@contextmanager
def opened(
    asked: Options, path: Path, name: str, limits: Limits | None, take: Callable[[], Worker] | None
) -> Iterator[JudgedFunction]:
    """A function of a file, to be judged; take: gives a process that waits. Behind it the process is ended.

    Raises ArgumentError or UnknownName for a file that cannot be imported, or has no such function.
    """
    guest = implementation.opening(asked.device, limits, take)
    read = untrusted.reading(path, name) if "thresholds" in asked.checks else nullcontext()
    try:
        with read, temporary_backends.joined(asked.impl, asked.ops[0], guest):
            yield JudgedFunction(implementation.process(path, name, asked.device))
    finally:
        implementation.close()


def _restless(process: CandidateProcess) -> str:
    """What goes on in a process that nothing is asked of, "" if it comes to rest: what it has started may take a while."""
    problem = ""
    for pause in SETTLES:
        time.sleep(pause)
        if not (problem := process.awake(returned.LATER)):
            break
    return problem
