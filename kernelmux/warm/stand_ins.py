"""What torch and others are replaced by while a program is watched that believes to have a GPU."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._subclasses import fake_tensor
from torch.utils.data import DataLoader

import kernelmux
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.interop import autocast
from kernelmux.registry.observe.recorded_calls import GPU
from kernelmux.registry.util.cards import Card

CPU = torch.device("cpu")
KNOWN = 1024  # elements of a tensor at most, whose values are known where the program writes them down
# Functions of torch.cuda that do nothing, and those that give 0.
SILENT = """empty_cache init ipc_collect manual_seed manual_seed_all reset_accumulated_memory_stats reset_peak_memory_stats
    set_device set_per_process_memory_fraction set_rng_state set_rng_state_all synchronize""".split()
ZERO = "current_device max_memory_allocated max_memory_reserved memory_allocated memory_reserved".split()
# Options of a DataLoader that need worker processes, or memory that a GPU reads.
ASIDE = "num_workers pin_memory prefetch_factor persistent_workers multiprocessing_context timeout in_order".split()


def here(value: Any) -> Any:
    """A GPU as the CPU, another value as it is."""
    if isinstance(value, torch.device):
        return CPU if value.type == GPU.type else value
    if type(value) is int:  # the number of a GPU
        return CPU
    return "cpu" if isinstance(value, str) and value.startswith(GPU.type) else value


class UnwaitedEvent:
    """In place of an event, a stream or a CUDA graph, for which nothing waits."""

    cuda_stream = 0

    def __init__(self, *given: Any, **named: Any) -> None:
        """Whatever it is asked for."""

    def __enter__(self) -> UnwaitedEvent:
        return self

    def __exit__(self, *details: object) -> None:
        """Nothing is left."""

    def elapsed_time(self, other: Any) -> float:
        return 1.0

    def query(self) -> bool:
        return True

    def _nothing(self, *given: Any, **named: Any) -> None:
        """Nothing is waited for."""

    record = synchronize = wait = wait_event = wait_stream = replay = reset = _nothing


class OtherDevice(nullcontext[None]):
    """In place of torch.cuda.device."""


class _OfAnyDevice(type):
    """The class of `GeneratorOfAny`, of which torch's own are instances."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, torch._C.Generator)

    def __call__(cls, device: Any = CPU) -> Any:
        return torch._C.Generator(here(device))


class GeneratorOfAny(metaclass=_OfAnyDevice):
    """In place of torch.Generator: one of the CPU for any device."""


def _always(value: Any) -> Callable[..., Any]:
    return lambda *given, **named: value


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


def _answers(card: Card) -> dict[str, Any]:
    """What `torch.cuda` says of a card."""
    major, minor = card.capability
    properties = SimpleNamespace(
        name=card.title,
        major=major,
        minor=minor,
        multi_processor_count=card.processors,
        total_memory=card.memory,
        shared_memory_per_block_optin=card.shared_per_block,
        warp_size=32,
    )
    same: dict[str, Any] = {
        "device_count": 1,
        "get_arch_list": [f"sm_{major}{minor}"],
        "get_device_capability": card.capability,
        "get_device_name": card.title,
        "get_device_properties": properties,
        "is_available": True,
        "is_bf16_supported": True,
        "is_current_stream_capturing": False,
        "is_initialized": True,
        "mem_get_info": (card.memory, card.memory),
        "memory_stats": defaultdict(int),
        "memory_summary": "",
        "stream": nullcontext(),
        "graph": nullcontext(),
        "current_stream": UnwaitedEvent(),
        "default_stream": UnwaitedEvent(),
        **dict.fromkeys(SILENT),
        **dict.fromkeys(ZERO, 0),
    }
    return {
        **{name: _always(value) for name, value in same.items()},
        **dict.fromkeys(("Event", "Stream", "CUDAGraph"), UnwaitedEvent),
        "device": OtherDevice,
        "get_rng_state": lambda device=0: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "make_graphed_callables": _first,
    }


def _hollow_file(path: Any, *given: Any, **named: Any) -> dict[str, torch.Tensor]:
    """In place of safetensors' load_file, which reads into memory that fake tensors have not."""
    from safetensors import safe_open
    from safetensors import torch as tensors

    with safe_open(path, "pt") as file:
        found = {name: file.get_slice(name) for name in file.keys()}
        return {n: torch.empty(x.get_shape(), dtype=tensors._TYPES[x.get_dtype()]) for n, x in found.items()}


def _constructors() -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Places, and what is replaced in them, where the old function takes part."""
    enters, scales, loads = torch.autocast.__init__, torch.amp.GradScaler.__init__, DataLoader.__init__
    moves, target = torch.nn.Module.to, autocast.target

    def enter(self: Any, device_type: Any, dtype: Any = None, *given: Any, **named: Any) -> None:
        enters(self, here(device_type), dtype or torch.get_autocast_dtype(device_type), *given, **named)

    def scale(self: Any, *given: Any, **named: Any) -> None:
        scales(self, enabled=False)

    def load(self: Any, *given: Any, **named: Any) -> None:
        loads(self, *given[:5], **{name: value for name, value in named.items() if name not in ASIDE})

    def move(self: Any, *given: Any, **named: Any) -> Any:
        return moves(self, *map(here, given), **{name: here(v) if name == "device" else v for name, v in named.items()})

    def as_on_a_gpu(spec: Any, values: Any, device: str) -> Any:
        return target(spec, values, device if autocast.rule(spec) == "lower" else GPU.type)

    yield torch.autocast, {"__init__": enter}
    yield torch.amp.GradScaler, {"__init__": scale}
    yield DataLoader, {"__init__": load}
    yield torch.nn.Module, {"to": move}
    yield autocast, {"target": as_on_a_gpu}


def _places(card: Card) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Places, and what is replaced in them."""
    yield from _constructors()
    yield torch.cuda, _answers(card)
    yield torch.cuda.nvtx, dict.fromkeys(("range_push", "range_pop", "mark"), _always(0))
    yield torch, {"save": _always(None), "Generator": GeneratorOfAny}
    yield kernelmux, {"graphed": _first, "bind": _unbound}
    # Parameters stay the same objects when a model changes its dtype; torch would exchange fake ones, and cannot.
    yield torch.utils, {"swap_tensors": lambda old, new: setattr(old, "data", new)}
    # transformers makes other masks where it sees a FakeTensor by this name, and no tensor is one of these.
    yield torch._subclasses, {"FakeTensor": UnwaitedEvent}
    yield fake_tensor, {"CONSTANT_NUMEL_LIMIT": KNOWN}
    if find_spec("safetensors"):
        from safetensors import torch as tensors

        yield tensors, {"load_file": _hollow_file}


@contextmanager
def as_on(card: Card) -> Iterator[None]:
    """Inside, torch answers as on a machine with the card; nothing is compiled, captured, scaled, loaded aside or saved."""
    default = torch.set_default_device
    with ExitStack() as inside:
        for place, values in [*_places(card)]:
            for name, value in values.items():
                inside.enter_context(mock.patch.object(place, name, value, create=True))
        inside.callback(default, None)
        inside.enter_context(mock.patch.object(torch, "set_default_device", lambda device: default(here(device))))
        inside.enter_context(registered.on_another_machine(GPU))
        inside.enter_context(torch.compiler.set_stance("force_eager"))
        inside.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        yield
