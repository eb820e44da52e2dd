"""Calls side by side in threads, taken in turns operation by operation, and a count of the tensors that calls keep."""

from __future__ import annotations

import contextvars
import random
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelmux.candidate.dispatch_mode import DispatchMode

PAUSE = 2e-4  # seconds: longer than an operation of torch takes to start
DELAY = 100_000  # clock cycles on a GPU, some 50 us
GRACE = 0.2  # seconds without processor time that a thread may keep its turn: it may wait for one that has none
PATIENCE = 120  # seconds


class Yielding(DispatchMode):
    """After every operation of torch other threads have their turn."""

    def __init__(self, give_way: Callable[[Any], None]) -> None:
        """give_way: called with the result of each operation."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.give_way = give_way

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.give_way(result)
        return result


class ThreadTurns:
    """One of several threads goes on at a time; which one is drawn, so that the load of the machine changes nothing."""

    def __init__(self, count: int) -> None:
        self.changed, self.chance = threading.Condition(), random.Random(0)
        self.there, self.turn = list(range(count)), 0
        self.clocks: dict[int, int] = {}  # of the processor time of each thread

    def enter(self, own: int) -> None:
        """This thread takes part; before any of them waits."""
        if hasattr(time, "pthread_getcpuclockid"):
            self.clocks[own] = time.pthread_getcpuclockid(threading.get_ident())

    def wait(self, own: int) -> None:
        """Until it is this thread's turn, or the one whose turn it is does not get on."""
        with self.changed:
            while self.turn != own:
                before = self._progress()
                if not self.changed.wait(GRACE) and self._progress() == before:
                    self._give(own)

    def give_way(self, own: int) -> None:
        """Another thread goes on, or this one."""
        with self.changed:
            self._give(self.chance.choice(self.there))
        self.wait(own)

    def leave(self, own: int) -> None:
        """This thread is done."""
        with self.changed:
            self.there.remove(own)
            if self.there:
                self._give(self.chance.choice(self.there))

    def _progress(self) -> tuple[int, float]:
        """Whose turn it is, and the processor time that it has had: on a busy machine a call takes long and goes on."""
        clock = self.clocks.get(self.turn)
        return self.turn, 0.0 if clock is None else time.clock_gettime(clock)

    def _give(self, other: int) -> None:
        self.turn = other
        self.changed.notify_all()


class Living(DispatchMode):
    """Counts how many of the tensors that operations made are still there; one that is changed in place counts once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made: dict[int, weakref.ref[torch.Tensor]] = {}  # by id, which a tensor made later may have again

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple | list) else (result,):
            if isinstance(x, torch.Tensor):
                self._made[id(x)] = weakref.ref(x)
        return result

    def count(self) -> int:
        self._made = {key: ref for key, ref in self._made.items() if ref() is not None}
        return len(self._made)


def side_by_side(works: Sequence[Callable[[], Any]], device: torch.device) -> list[Any]:
    """Runs each function in a thread of its own (on a GPU: on a stream of its own); the results, or the first error.

    The functions see the context variables of the caller. Raises TimeoutError if they do not end.
    """
    with Yielding(lambda result: None):  # the first one in a process imports for seconds, which no turn should take
        torch.empty(0)
    results: list[Any] = [None] * len(works)
    errors: list[BaseException] = []
    start, turns = threading.Barrier(len(works)), ThreadTurns(len(works))

    def run(turn: int) -> None:
        try:
            turns.enter(turn)
            start.wait(PATIENCE)
            if device.type == "cuda":
                results[turn] = _on_own_stream(works[turn], device, turn)
            else:
                results[turn] = _in_turn(works[turn], turns, turn)
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(run, i), daemon=True) for i in range(len(works))
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
    if errors:
        raise errors[0]
    if any(thread.is_alive() for thread in threads):
        raise TimeoutError(f"{len(works)} calls in threads have not ended after {PATIENCE} s")
    return results


def _in_turn(work: Callable[[], Any], turns: ThreadTurns, own: int) -> Any:
    turns.wait(own)
    try:
        with torch.no_grad(), Yielding(lambda result: turns.give_way(own)):
            return work()
    finally:
        turns.leave(own)


def _on_own_stream(work: Callable[[], Any], device: torch.device, seed: int) -> Any:
    chance = random.Random(seed)

    def delay(result: Any) -> None:
        """Of the stream and of this thread, by chance."""
        if isinstance(result, torch.Tensor) and result.is_cuda and not torch.cuda.is_current_stream_capturing():
            torch.cuda._sleep(chance.randrange(DELAY))  # type: ignore[no-untyped-call]
        time.sleep(chance.random() * PAUSE)

    with torch.no_grad():
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream), Yielding(delay):
            result = work()
        stream.synchronize()
        return result
