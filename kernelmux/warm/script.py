"""Which operators a program calls, without a GPU, without memory for its tensors, and without computing anything.

The program runs on torch's fake tensors, which have shapes, strides and dtypes alone. They lie on the CPU, say that they
are on a GPU, and are taken as the GPU's. What a program asks of `torch.cuda` is answered for the card; a value that it
reads (`.item()`) is 1, and of a truth False, but for `.all()`.
"""

from __future__ import annotations

import math
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

import kernelmux
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.interop import torch_ops
from kernelmux.registry.observe.recorded_calls import GPU, RecordedCall
from kernelmux.registry.util.cards import Card

CPU = torch.device("cpu")
T: Any = torch.Tensor
SEEN = {T.is_cuda.__get__: True, T.is_cpu.__get__: False}  # what tensors say of themselves
HERE = (T.cuda, T.pin_memory)  # which give a tensor of the GPU: each is one
ATEN: Any = torch.ops.aten
READ = (ATEN._local_scalar_dense.default, ATEN.item.default, ATEN.is_nonzero.default)
SILENT = ("empty_cache", "manual_seed", "manual_seed_all", "reset_peak_memory_stats", "set_device", "synchronize")
ZERO = ("current_device", "max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved")


class EnoughSeen(BaseException):
    """Raised at the last step that is wanted, and when time is over; a program that catches errors does not catch it."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the calls of our operators, and answers where a program reads a value."""

    def __init__(self, until: float) -> None:
        """until: by time.monotonic, when the program is ended."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: dict[RecordedCall, int] = {}
        self.until = until

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if time.monotonic() > self.until:
            raise EnoughSeen
        named = dict(kwargs or {})
        if func.namespace == torch_ops.NAMESPACE:
            self._keep(func, args, named)
        if func in READ:
            return _guess(args[0], func is ATEN.is_nonzero.default)
        found = func(*args, **named)
        if func._schema.name == "aten::all":
            found.every = True
        return found

    def _keep(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> None:
        op, backend = func._schema.name.split("::")[1], named.get("backend") or "auto"
        call = RecordedCall.of(op, torch_ops.complete(catalog.spec(op), tuple(args)), backend)
        if call is not None:
            self.calls[call] = self.calls.get(call, 0) + 1


def _guess(x: Any, truth: bool) -> bool | float | int:
    """A value for one that a program reads, of a tensor or of whether it is true."""
    if truth or x.dtype is torch.bool:
        return hasattr(x, "every")
    return 1.0 if x.dtype.is_floating_point else 1


class OnTheCpu(TorchFunctionMode):
    """Puts on the CPU what a program wants on a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if func in SEEN:
            return SEEN[func]
        if func in HERE:
            return args[0]
        if func is T.get_device:
            return 0
        if func is torch.device:
            return func(*args, **named)
        if "device" in named:
            named["device"] = _here(named["device"])
        return func(*(map(_here, args) if func is T.to else args), **named)


def _here(value: Any) -> Any:
    """A device as the CPU, another value as it is."""
    if isinstance(value, torch.device):
        return CPU if value.type == GPU.type else value
    return "cpu" if isinstance(value, str) and value.startswith(GPU.type) else value


@contextmanager
def _replaced(place: Any, **values: Any) -> Iterator[None]:
    with mock.patch.multiple(place, create=True, **values):
        yield


class UnwaitedEvent:
    """In place of an event, a stream or a CUDA graph, which nobody waits for."""

    def __init__(self, *given: Any, **named: Any) -> None:
        """Whatever it is asked for."""

    def elapsed_time(self, other: Any) -> float:
        return 1.0

    def query(self) -> bool:
        return True

    def _nothing(self, *given: Any) -> None:
        """Nothing is waited for."""

    record = synchronize = wait = wait_event = wait_stream = replay = reset = _nothing


def _answers(card: Card) -> dict[str, Any]:
    """What `torch.cuda` says of a card."""
    major, minor = card.capability
    properties = SimpleNamespace(
        name=card.title,
        major=major,
        minor=minor,
        multi_processor_count=card.processors,
        total_memory=card.memory,
        warp_size=32,
    )
    same = {
        "device_count": 1,
        "get_device_capability": card.capability,
        "get_device_name": card.title,
        "get_device_properties": properties,
        "is_available": True,
        "is_bf16_supported": True,
        "is_current_stream_capturing": False,
        "mem_get_info": (card.memory, card.memory),
        "stream": nullcontext(),
        "device": nullcontext(),
        "graph": nullcontext(),
        "current_stream": UnwaitedEvent(),
        "default_stream": UnwaitedEvent(),
        **dict.fromkeys(SILENT),
        **dict.fromkeys(ZERO, 0),
    }
    answers = {name: _always(value) for name, value in same.items()}
    return {
        **answers,
        **dict.fromkeys(("Event", "Stream", "CUDAGraph"), UnwaitedEvent),
        "make_graphed_callables": _first,
    }


def _first(value: Any, *given: Any, **named: Any) -> Any:
    """In place of what captures a function: the function itself, which its first call shows."""
    return value


def _unbound(op: str, like: Any, backend: Any = None, check: bool = True, **scalars: Any) -> Callable[..., Any]:
    """In place of `kernelmux.bind`: the public function on tensors in their order, with scalars by name."""
    places = [like] if isinstance(like, torch.Tensor) else list(like)
    function = getattr(kernelmux, op)

    def bound(*tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        return function(*(None if x is None else next(given) for x in places), backend=backend, **scalars)

    return bound


def _always(value: Any) -> Callable[..., Any]:
    return lambda *given, **named: value


@contextmanager
def _as_on(card: Card) -> Iterator[None]:
    """Inside, torch answers as on a machine with the card, and nothing is compiled, scaled, loaded aside or saved."""
    autocast, scaler, loader = torch.autocast.__init__, torch.amp.GradScaler.__init__, DataLoader.__init__

    def enters(self: Any, device_type: Any, dtype: Any = None, *given: Any, **named: Any) -> None:
        autocast(self, _here(device_type), dtype or torch.get_autocast_dtype(device_type), *given, **named)

    def scales(self: Any, *given: Any, **named: Any) -> None:
        scaler(self, enabled=False)

    def loads(self: Any, *given: Any, **named: Any) -> None:
        aside = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "multiprocessing_context")
        loader(self, *given, **{name: value for name, value in named.items() if name not in aside})

    with ExitStack() as inside:
        inside.enter_context(_replaced(torch.cuda, **_answers(card)))
        inside.enter_context(_replaced(torch.cuda.nvtx, range_push=_always(0), range_pop=_always(0), mark=_always(0)))
        inside.enter_context(_replaced(torch.autocast, __init__=enters))
        inside.enter_context(_replaced(torch.amp.GradScaler, __init__=scales))
        inside.enter_context(_replaced(DataLoader, __init__=loads))
        inside.enter_context(_replaced(torch, save=_always(None)))
        inside.enter_context(_replaced(kernelmux, graphed=_first, bind=_unbound))
        # Parameters stay the same objects when a model changes its dtype; torch would exchange fake ones, and cannot.
        inside.enter_context(_replaced(torch.utils, swap_tensors=lambda old, new: setattr(old, "data", new)))
        inside.enter_context(registered.on_another_machine(GPU))
        inside.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@dataclass(frozen=True)
class SeenCalls:
    """The calls that a program made, with how often. raised: what ended it, if it raised; late: it was ended by time."""

    calls: Mapping[RecordedCall, int]
    raised: BaseException | None = None
    late: bool = False


def run(path: Path, words: Sequence[str], card: Card, steps: int = 0, seconds: float = math.inf) -> SeenCalls:
    """Run a program as `python path words`, and see what it calls.

    card: that it believes to have. steps: of its optimizers, after which it ends; 0 for all. seconds: after which it is
    ended at the next operator of torch.
    """
    recorder, left = Recorder(time.monotonic() + seconds), [steps]

    def count(*given: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise EnoughSeen

    hook = register_optimizer_step_post_hook(count)
    folder, before = str(path.resolve().parent), (sys.argv, sys.path[:])
    sys.argv, sys.path[:0] = [str(path), *words], [folder]
    try:
        with _as_on(card), FakeTensorMode(allow_non_fake_inputs=True), recorder, OnTheCpu():
            runpy.run_path(str(path), run_name="__main__")
    except EnoughSeen:
        return SeenCalls(recorder.calls, late=not steps or left[0] > 0)
    except SystemExit as ended:
        return SeenCalls(recorder.calls, None if ended.code in (None, 0) else ended)
    except Exception as error:
        return SeenCalls(recorder.calls, error)
    finally:
        hook.remove()
        sys.argv, sys.path[:] = before
    return SeenCalls(recorder.calls)
