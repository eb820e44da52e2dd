"""The one way a Triton kernel is started here, because starting it is most of what a small op costs.

`kernel[grid](...)` derives the specialisation again at each call: 20 us of host time on an H200's host. A `Launch` is a
kernel with everything but its tensors; it keeps the compiled kernel, ready to be launched (`_packed`), under what of the
tensors Triton specialises on, dtypes and the 16-byte alignment of addresses. What leads to
a `Launch` (strides, rule, grid: 20 us more) depends on shapes, strides and dtypes alone, and is remembered by `@plan`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
import triton
from triton.runtime import driver
from triton.runtime._async_compile import AsyncCompileMode, active_mode
from triton.tools.tensor_descriptor import TensorDescriptor

from kernelmux.backends.triton._launch import prompt_driver
from kernelmux.backends.triton._launch.packed import ArgumentSlot, packed
from kernelmux.emulator import triton_cache
from kernelmux.registry.call import first_call, launch_replay
from kernelmux.registry.util import cards

_THREADS = min(8, os.cpu_count() or 1)
triton_cache.ensure()
prompt_driver.install()

Ints = tuple[int, ...]
Config = dict[str, Any]

# Remembers what a function of shapes, strides, dtypes and device returned.
plan = cards.remembered


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def processors(device: int) -> int:
    """Multiprocessors of a GPU; on the emulator (-1), of the card that it stands for."""
    return cards.of(device).processors


def shared_bytes(device: int) -> int:
    """Shared memory that one program may have; on the emulator (-1), of the card that it stands for."""
    return cards.of(device).shared_per_block


def overlaps(device: int) -> bool:
    """A kernel may be started before the one it waits for has ended: on Hopper and later."""
    return cards.of(device).capability >= (9, 0)


def like(x: torch.Tensor) -> torch.Tensor:
    """A new contiguous tensor of the shape, dtype and device of x, in half the time of torch.empty."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _gluon_descriptor() -> Any:
    from triton.experimental.gluon.nvidia import hopper  # 0.05 s, for the kernels that need it

    return hopper.TensorDescriptor


class Map:
    """How the copy engine (TMA) sees a tensor: a TensorDescriptor without its tensor; with a layout, Gluon's."""

    def __init__(self, shape: Sequence[int], strides: Sequence[int], block: Sequence[int], layout: Any = None) -> None:
        self.fields: tuple[Any, ...]
        self.fields = (list(shape), list(strides), list(block), *([] if layout is None else [layout]))
        self.kind = TensorDescriptor if layout is None else _gluon_descriptor()
        self.checked: dict[str, Any] = {}

    def of(self, x: torch.Tensor) -> Any:
        """The descriptor of x. Only the first is checked: the others differ in nothing but the address."""
        if not self.checked:
            self.checked = {**self.kind(x, *self.fields).__dict__, "base": None}
        descriptor = object.__new__(self.kind)
        descriptor.__dict__.update(self.checked, base=x)
        return descriptor


class Start(NamedTuple):
    """A compiled kernel on one kind of tensors.

    launch: called with a raw stream, what stands for each tensor, and the numbers of the call. of: per tensor, what stands
    for it, of its address; None for the address itself. whole: of the tensor.
    """

    launch: Callable[..., None]
    of: tuple[Callable[[Any], Any] | None, ...]
    whole: bool = False

    def notes(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """The tensors as a replay takes them."""
        return [
            x if of is None else launch_replay.TensorArgument(x, of, self.whole)
            for of, x in zip(self.of, tensors, strict=True)
        ]


class Launch:
    """A kernel, its grid, the arguments behind its tensors, and by name its constexprs and options (num_warps, ...).

    Called with the tensors, it runs on the device of the first and on torch's current stream there; on CPU tensors,
    with whatever driver Triton has active (the emulator's). With maps, each tensor goes in as that TensorDescriptor.
    numbers: fp32 scalars that a call gives, between the tensors and the other arguments.
    """

    __slots__ = ("grid", "kernel", "known", "maps", "meta", "scalars")

    def __init__(self, kernel: Any, grid: Ints, *scalars: Any, maps: tuple[Map, ...] = (), **meta: Any) -> None:
        self.kernel, self.scalars, self.maps, self.meta = kernel, scalars, maps, meta
        self.grid = (*grid, 1, 1)[:3]
        self.known: dict[tuple[Any, ...], Start] = {}

    def __call__(self, *tensors: torch.Tensor, numbers: tuple[float, ...] = ()) -> None:
        device = tensors[0].get_device()
        active = driver.active
        if device < 0 or triton.knobs.runtime.launch_enter_hook.calls:
            self._compile(tensors, numbers)
        elif device != active.get_current_device():
            with torch.cuda.device(device):
                self(*tensors, numbers=numbers)
        else:
            addresses = [x.data_ptr() for x in tensors]
            key = (device, *[(x.dtype, a & 15 == 0) for x, a in zip(tensors, addresses, strict=True)])
            known, first = self.known.get(key), first_call.launches()
            if known is None or (first and first.waiting):
                return self._first(key, tensors, numbers, first)
            given = tensors if known.whole else addresses
            values = [x if of is None else of(x) for of, x in zip(known.of, given, strict=True)]
            known.launch(active.get_current_stream(device), *values, *numbers)
            if launch_replay.watching():
                hook = triton.knobs.runtime.launch_enter_hook
                launch_replay.launched(known.launch, (*known.notes(tensors), *numbers), hook)

    def _first(self, key: Any, tensors: Any, numbers: Any, first: first_call.WaitingLaunches | None) -> None:
        """Compile, and launch when all before it are; in the first call of a kind beside other kernels of that."""
        if first and launch_replay.watching():
            first.make()
            first = None
        compiled: Any = None if key in self.known else self._compiling(tensors, numbers, first)

        def launch() -> None:
            if key[0] != driver.active.get_current_device():  # it waited until the implementation had returned
                with torch.cuda.device(key[0]):
                    return launch()
            if key not in self.known:
                done = compiled.result() if hasattr(compiled, "result") else compiled
                self.known[key] = self._start(done, len(tensors), len(numbers))
            self(*tensors, numbers=numbers)

        if first and (first.waiting or hasattr(compiled, "result")):
            first.put(launch)
        else:
            launch()

    def _compiling(self, tensors: Any, numbers: Any, first: first_call.WaitingLaunches | None) -> Any:
        """The compiled kernel, or the promise of it by a thread."""
        if first is None:
            return self._compile(tensors, numbers, warmup=True)
        if "mode" not in first.shared:
            first.shared["mode"] = AsyncCompileMode(ThreadPoolExecutor(_THREADS))
        token = active_mode.set(first.shared["mode"])
        try:
            return self._compile(tensors, numbers, warmup=True)
        finally:
            active_mode.reset(token)

    def _grouped(self, values: Sequence[Any], numbers: Sequence[Any]) -> tuple[Any, ...]:
        """What stands for the tensors and the numbers, as the kernel takes them: some take tuples."""
        return *values, *numbers

    def _described(self, tensors: Sequence[Any]) -> Sequence[Any]:
        return [m.of(x) for m, x in zip(self.maps, tensors, strict=True)] if self.maps else tensors

    def _compile(self, tensors: tuple[torch.Tensor, ...], numbers: tuple[float, ...], warmup: bool = False) -> Any:
        """The compiled kernel, launched by way of Triton unless it is only to be there."""
        values = self._grouped(self._described(tensors), numbers)
        return self.kernel.run(*values, *self.scalars, grid=self.grid, warmup=warmup, **self.meta)

    def _start(self, compiled: Any, tensors: int, numbers: int) -> Start:
        """The launch of a compiled kernel for so many tensors and numbers: by the driver, or by Triton's own launcher."""
        compiled._init_handles()  # loads it
        fields = [m.fields[:2] if isinstance(m, Map) else () for m in self.maps] or [()] * tensors
        given = [ArgumentSlot(i, *sizes) for i, sizes in enumerate([*fields, *[()] * numbers])]
        constants = [self.meta.get(p.name, p.default) for p in self.kernel.params if p.is_constexpr]
        rest = (*self.scalars, *constants)  # a launcher counts constexprs as arguments too
        found = packed(compiled, self.grid, (*self._grouped(given[:tensors], given[tensors:]), *rest))
        if found:
            maps = [found.maps.get(i) for i in range(tensors)]
            return Start(found.launch, tuple(None if m is None else m.__getitem__ for m in maps))
        described = tuple(m.of for m in self.maps) or (None,) * tensors
        return Start(self._by_triton(compiled, tensors, rest), described, bool(self.maps))

    def _by_triton(self, compiled: Any, tensors: int, rest: tuple[Any, ...]) -> Callable[..., None]:
        (x, y, z), run, function, about = self.grid, compiled.run, compiled.function, compiled.packed_metadata

        def launched(stream: int, *values: Any) -> None:
            first = self._grouped(values[:tensors], values[tensors:])
            run(x, y, z, stream, function, about, None, None, None, *first, *rest)

        return launched
