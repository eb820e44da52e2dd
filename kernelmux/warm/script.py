"""Which operators a program calls, without a GPU, without memory for its tensors, and without computing anything large.

The program runs on torch's fake tensors, which have shapes, strides and dtypes alone. They lie on the CPU, say that they
are on a GPU, and are taken as the GPU's. What a program asks of `torch.cuda` is answered for the card (`stand_ins`). A
value that it reads (`.item()`) is the right one where it follows from small tensors that the program wrote down; else it
is 1, and of a truth False, but for `.all()` (`watch`).
"""

from __future__ import annotations

import math
import runpy
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from kernelmux.registry.observe.recorded_calls import RecordedCall
from kernelmux.registry.util.cards import Card
from kernelmux.warm import stand_ins
from kernelmux.warm.watch import EnoughSeen, OnTheCpu, Recorder


@dataclass(frozen=True)
class SeenCalls:
    """The calls that a program made, with how often. raised: what ended it, if it raised; late: it was ended by time."""

    calls: Mapping[RecordedCall, int]
    raised: BaseException | None = None
    late: bool = False


class OptimizerSteps:
    """The steps of each optimizer. most: of every one of them, after which the program ends; 0 for all."""

    def __init__(self, most: int) -> None:
        self.most, self.done = most, dict[int, int]()
        self._begin = Optimizer.__init__

    def begins(self, optimizer: Any, *given: Any, **named: Any) -> None:
        """In place of the constructor of an optimizer."""
        self.done[id(optimizer)] = 0
        self._begin(optimizer, *given, **named)

    def count(self, optimizer: Any, *given: Any) -> None:
        """Behind a step."""
        self.done[id(optimizer)] = self.done.get(id(optimizer), 0) + 1
        if self.enough:
            raise EnoughSeen

    @property
    def enough(self) -> bool:
        return 0 < self.most <= min(self.done.values(), default=0)


def run(path: Path, words: Sequence[str], card: Card, steps: int = 0, seconds: float = math.inf) -> SeenCalls:
    """Run a program as `python path words`, and see what it calls.

    card: that it believes to have. steps: of each of its optimizers, after which it ends; 0 for all. seconds: after which
    it is ended at the next operator of torch.
    """
    fakes, count = FakeTensorMode(allow_non_fake_inputs=True), OptimizerSteps(steps)
    recorder = Recorder(fakes, time.monotonic() + seconds)
    hook = register_optimizer_step_post_hook(count.count)
    before = sys.argv, sys.path[:]
    sys.argv, sys.path[:0] = [str(path), *words], [str(path.resolve().parent)]
    begins = mock.patch.object(Optimizer, "__init__", lambda *given, **named: count.begins(*given, **named))
    raised: BaseException | None = None
    late = False
    try:
        with begins, stand_ins.as_on(card), fakes, recorder, OnTheCpu():
            runpy.run_path(str(path), run_name="__main__")
    except EnoughSeen:
        late = not count.enough
    except SystemExit as ended:
        raised = None if ended.code in (None, 0) else ended
    except Exception as error:
        raised = error
    finally:
        hook.remove()
        sys.argv, sys.path[:] = before
    return SeenCalls(recorder.calls, raised, late)
