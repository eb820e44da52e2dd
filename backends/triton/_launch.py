"""The one way a Triton kernel is started here, because starting it is most of what a small op costs.

`kernel[grid](...)` derives the specialisation again at each call: 20 us of host time on an H200's host, where the
compiled kernel's own launcher takes 8 us. `launch` keeps that launcher under exactly what Triton specialises on:
dtypes, 16-byte alignment of pointers, integers that are 1, multiples of 16 or wide, and the compile-time values.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
from triton.experimental.gluon.nvidia import hopper
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

Grid = tuple[int, ...]
DESCRIPTORS = (TensorDescriptor, hopper.TensorDescriptor)

_launchers: dict[tuple[Any, ...], tuple[Any, ...]] = {}


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


@cache
def _processors(device: int) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def processors(x: torch.Tensor) -> int:
    """Multiprocessors of the GPU of x; 4 on the emulator, where more programs would only be more work."""
    return _processors(x.get_device()) if x.is_cuda else 4


def launch(kernel: Any, grid: Grid, *args: Any, **meta: Any) -> None:
    """Run `kernel` on `grid`: its arguments in order, then constexprs and options (num_warps, ...) by name.

    Integers may come grouped in tuples, and matrices as TensorDescriptor. The kernel runs on the device of the CUDA
    tensors among the arguments and on torch's current stream there; CPU tensors alone go to whatever driver Triton has
    active (the emulator's).
    """
    device, values, classes = _specialise(args)
    if device < 0 or triton.knobs.runtime.launch_enter_hook.calls:
        kernel[grid](*args, **meta)
        return
    if device != driver.active.get_current_device():
        with torch.cuda.device(device):
            launch(kernel, grid, *args, **meta)
        return
    key = (id(kernel), device, *classes, *meta.values())
    known = _launchers.get(key)
    if known is None:
        _launchers[key] = _launcher(kernel, kernel[grid](*args, **meta), meta)
        return
    run, function, packed, constants = known
    x, y, z = (*grid, 1, 1)[:3]
    stream = driver.active.get_current_stream(device)
    run(x, y, z, stream, function, packed, None, None, None, *values, *constants)


def _launcher(kernel: Any, compiled: Any, meta: dict[str, Any]) -> tuple[Any, ...]:
    """What a further launch of a compiled kernel needs; its launcher counts constexprs too, as the last arguments."""
    constants = tuple(meta[p.name] if p.name in meta else p.default for p in kernel.params if p.is_constexpr)
    return compiled.run, compiled.function, compiled.packed_metadata, constants


def _specialise(args: tuple[Any, ...]) -> tuple[int, list[Any], list[Any]]:
    """The device (-1: no CUDA tensor), the values to pass (addresses for tensors), and the specialisation key."""
    device = -1
    values: list[Any] = []
    key: list[Any] = []
    for arg in args:
        if isinstance(arg, torch.Tensor):
            address = arg.data_ptr()
            values.append(address)
            key.append((arg.dtype, address % 16 == 0))
            if arg.is_cuda:
                device = arg.get_device()
            continue
        values.append(arg)
        if type(arg) is tuple:
            key.append(tuple([_integer_class(i) for i in arg]))
        elif isinstance(arg, DESCRIPTORS):
            key.append((arg.base.dtype, *arg.block_shape))
            device = arg.base.get_device()
        else:
            key.append(_integer_class(arg) if type(arg) is int else type(arg))
    return device, values, key


def _integer_class(value: int) -> int:
    """Triton compiles one kernel per class: 1 is a constant, multiples of 16 are known, wide ones have 64 bits."""
    if value == 1:
        return 1
    wide = not -(2**31) <= value < 2**31
    return 2 + (value % 16 == 0) + 2 * wide
