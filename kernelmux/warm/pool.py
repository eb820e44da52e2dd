"""Which variants run the calls of a program on a card; their kernels compiled side by side, by processes without a GPU."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from unittest import mock

from kernelmux.registry.backend import device_tables
from kernelmux.registry.choice import decide, precedence
from kernelmux.registry.errors import KernelmuxError, cut
from kernelmux.registry.observe.recorded_calls import RecordedCall
from kernelmux.registry.util import cards
from kernelmux.runner.machine import ONE_THREAD, VISIBLE
from kernelmux.warm import compiling

ENDED = "the process that compiled it ended"


@dataclass(frozen=True)
class Compilation:
    """What becomes of a call. variant: "cuda/tiled", "" where none can run it; problem: why it is not compiled, or ""."""

    call: RecordedCall
    variant: str = ""
    seconds: float = 0.0
    problem: str = ""

    @property
    def backend(self) -> str:
        """That of the variant: "cuda"."""
        return self.variant.partition("/")[0]

    @property
    def ours(self) -> bool:
        """Whether there is anything to compile; torch's own kernels are there."""
        return not self.problem and compiling.able(self.backend)


def choices(calls: Iterable[RecordedCall]) -> list[Compilation]:
    """The variant that runs each call on the card that the emulator stands for, by priorities and times as there."""
    with device_tables.of_emulated():
        return [_choice(call) for call in calls]


def _choice(call: RecordedCall) -> Compilation:
    try:
        bound = call.bound(cards.emulated().capability)
        request = precedence.requested(call.op, call.backend, bound)
        decision = decide.decide(bound, request, elsewhere=True)
        return Compilation(call, (decision.chosen or decide.refuse(decision)).name)
    except KernelmuxError as error:
        return Compilation(call, problem=_text(error))


def compile_all(chosen: Sequence[Compilation], processes: int) -> Iterator[Compilation]:
    """Compile for the card that the emulator stands for, by so many processes; each call when it has ended.

    Where a process ends, as a compiler may crash, the calls that were under way are compiled anew, one at a time.
    """
    left = dict.fromkeys(chosen)
    with mock.patch.dict(os.environ, {VISIBLE: "", **ONE_THREAD}):
        while left:
            for one, ended in _round([*left], processes):
                del left[one]
                yield ended
            if left and processes == 1:
                lost = next(iter(left))
                del left[lost]
                yield replace(lost, problem=ENDED)
            processes = 1


def _round(chosen: Sequence[Compilation], processes: int) -> Iterator[tuple[Compilation, Compilation]]:
    """What could be compiled before a process ended: as it was given, and what became of it."""
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(compile_one, one): one for one in chosen}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            return
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def compile_one(one: Compilation) -> Compilation:
    """Compile one call in this process."""
    begun = time.monotonic()
    try:
        bound = one.call.bound(cards.emulated().capability)
        compiling.compile_call(bound, *one.variant.split("/", 1))
    except Exception as error:  # of a compiler, of a launcher that reads values
        return replace(one, problem=f"{type(error).__name__}: {_text(error)}")
    return replace(one, seconds=time.monotonic() - begun)


def _text(error: Exception) -> str:
    return cut(" ".join(str(error).split()))
