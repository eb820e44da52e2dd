"""The one way a Triton kernel is started here, because starting it is most of what a small op costs.

`kernel[grid](...)` derives the specialisation again at each call: 20 us of host time on an H200's host, where the
compiled kernel's own launcher takes 8 us. A `Launch` is a kernel with everything but its tensors; it keeps that
launcher under what of the tensors Triton specialises on, dtypes and the 16-byte alignment of addresses. What leads to
a `Launch` (strides, rule, grid: 20 us more) depends on shapes, strides and dtypes alone, and is remembered by `@plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

import torch
import triton
from triton.experimental.gluon.nvidia import hopper
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

from kernelmux.emulator import triton_cache
from kernelmux.registry import replay

triton_cache.ensure()

Ints = tuple[int, ...]
Config = dict[str, Any]

# Remembers what a function of shapes, strides and dtypes returned; 4096 kinds of call are enough for a model.
plan = lru_cache(maxsize=4096)


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


@cache
def processors(device: int) -> int:
    """Multiprocessors of a GPU; 4 on the emulator (-1), where more programs would only be more work."""
    return 4 if device < 0 else int(torch.cuda.get_device_properties(device).multi_processor_count)


def shared_bytes(device: int) -> int:
    """Shared memory that one program may have; on the emulator (-1), of the GPU that it stands for at the moment."""
    return _shared_bytes(driver.active.get_current_device(), True) if device < 0 else _shared_bytes(device, False)


@cache
def _shared_bytes(device: int, emulated: bool) -> int:
    return int(driver.active.utils.get_device_properties(device)["max_shared_mem"])


@cache
def overlaps(device: int) -> bool:
    """A kernel may be started before the one it waits for has ended: on Hopper and later; not on the emulator (-1)."""
    return device >= 0 and torch.cuda.get_device_capability(device) >= (9, 0)


def like(x: torch.Tensor) -> torch.Tensor:
    """A new contiguous tensor of the shape, dtype and device of x, in half the time of torch.empty."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


class Map:
    """How the copy engine (TMA) sees a tensor: a TensorDescriptor without its tensor; with a layout, Gluon's."""

    def __init__(self, shape: Sequence[int], strides: Sequence[int], block: Sequence[int], layout: Any = None) -> None:
        self.fields = (list(shape), list(strides), list(block), *([] if layout is None else [layout]))
        self.kind = TensorDescriptor if layout is None else hopper.TensorDescriptor
        self.checked: dict[str, Any] = {}

    def of(self, x: torch.Tensor) -> Any:
        """The descriptor of x. Only the first is checked: the others differ in nothing but the address."""
        if not self.checked:
            self.checked = {**self.kind(x, *self.fields).__dict__, "base": None}
        descriptor = object.__new__(self.kind)
        descriptor.__dict__.update(self.checked, base=x)
        return descriptor


class Launch:
    """A kernel, its grid, the arguments behind its tensors, and by name its constexprs and options (num_warps, ...).

    Called with the tensors, it runs on the device of the first and on torch's current stream there; on CPU tensors,
    with whatever driver Triton has active (the emulator's). With maps, each tensor goes in as that TensorDescriptor.
    """

    __slots__ = ("grid", "kernel", "known", "maps", "meta", "scalars")

    def __init__(self, kernel: Any, grid: Ints, *scalars: Any, maps: tuple[Map, ...] = (), **meta: Any) -> None:
        self.kernel, self.scalars, self.maps, self.meta = kernel, scalars, maps, meta
        self.grid = (*grid, 1, 1)[:3]
        self.known: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def __call__(self, *tensors: torch.Tensor) -> None:
        device = tensors[0].get_device()
        active = driver.active
        if device < 0 or triton.knobs.runtime.launch_enter_hook.calls:
            self._compile(tensors)
        elif device != active.get_current_device():
            with torch.cuda.device(device):
                self(*tensors)
        else:
            addresses = [x.data_ptr() for x in tensors]
            key = (device, *[(x.dtype, a & 15 == 0) for x, a in zip(tensors, addresses, strict=True)])
            known = self.known.get(key)
            if known is None:
                known = self.known[key] = self._compile(tensors)
            else:
                run, function, packed, rest = known
                values = [m.of(x) for m, x in zip(self.maps, tensors, strict=True)] if self.maps else addresses
                stream = active.get_current_stream(device)
                run(*self.grid, stream, function, packed, None, None, None, *values, *rest)
            if replay.watching():
                made = [replay.Made(x, m.of, whole=True) for m, x in zip(self.maps, tensors, strict=False)]
                replay.launched(self._prepared(known, None), made or tensors, triton.knobs.runtime.launch_enter_hook)

    def _prepared(self, known: tuple[Any, ...], group: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None) -> Any:
        """A launch on the current device: called with a raw stream and what stands for the tensors; group: into tuples."""
        (run, function, packed, rest), (x, y, z) = known, self.grid
        if group is None:
            return lambda stream, *values: run(x, y, z, stream, function, packed, None, None, None, *values, *rest)
        return lambda stream, *values: run(x, y, z, stream, function, packed, None, None, None, *group(values), *rest)

    def _compile(self, tensors: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
        """Launch by way of Triton; what a further launch needs, whose launcher counts constexprs as arguments too."""
        values = [m.of(x) for m, x in zip(self.maps, tensors, strict=True)] if self.maps else tensors
        compiled = self.kernel[self.grid](*values, *self.scalars, **self.meta)
        constants = [self.meta.get(p.name, p.default) for p in self.kernel.params if p.is_constexpr]
        return compiled.run, compiled.function, compiled.packed_metadata, (*self.scalars, *constants)
