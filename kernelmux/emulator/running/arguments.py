"""Arguments of a launch: typed against the kernel's parameters, tensors placed into emulated memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmux.emulator.errors import EmulatorError
from kernelmux.emulator.memory.global_memory import (
    ALIGNMENT,
    FIRST_ARGUMENT,
    GlobalMemory,
    Hull,
    Segment,
    machine_bytes,
)
from kernelmux.emulator.ptx.parser import Parameter


@dataclass(frozen=True)
class _Buffer:
    """An array argument: real addresses of its hull and of its storage."""

    name: str
    pointer: int
    lo: int
    hi: int
    storage: int
    shape: str
    steps: tuple[tuple[int, int], ...]


class ArgumentList:
    """The parameter bytes of one launch; its tensors as segments of global memory."""

    def __init__(self, kernel: str, parameters: Sequence[Parameter], args: Sequence[Any], names: Sequence[str]) -> None:
        self.kernel = kernel
        if len(args) != len(parameters):
            raise self._error(f"takes {len(parameters)} arguments, got {len(args)}")
        self.names = [names[i] if i < len(names) else f"argument {i}" for i in range(len(args))]
        self.parameters, self.args = parameters, args

    def place(self, memory: GlobalMemory) -> None:
        """Adds the tensors to `memory`; each storage becomes one segment."""
        buffers = [self._buffer(name, arg) for name, arg in zip(self.names, self.args, strict=True)]
        storages: dict[int, list[_Buffer]] = {}
        for i, buffer in enumerate(buffers):
            if buffer is not None:
                storages.setdefault(buffer.storage or -1 - i, []).append(buffer)
        self.addresses: dict[str, int] = {}
        for number, parts in enumerate(storages.values(), FIRST_ARGUMENT):
            self._segment(
                memory, 2 * number, parts
            )  # every other number: an offset of minus one byte meets no neighbour

    def _segment(self, memory: GlobalMemory, number: int, parts: list[_Buffer]) -> None:
        base = min(p.lo for p in parts) // ALIGNMENT * ALIGNMENT
        end = max(max(p.hi for p in parts), base)
        hulls = [Hull(p.lo - base, p.hi - base, p.name, p.shape, p.steps) for p in parts]
        memory.add(Segment(number, _bytes(base, end), hulls))
        for part in parts:
            self.addresses[part.name] = (number << 40) + part.pointer - base

    def pack(self, offsets: Sequence[int], size: int) -> np.ndarray:
        """The kernel's parameter bytes."""
        data = np.zeros(size, np.uint8)
        for name, parameter, arg, at in zip(self.names, self.parameters, self.args, offsets, strict=True):
            data[at : at + parameter.size] = np.frombuffer(self._value(name, parameter, arg), np.uint8)
        return data

    def _value(self, name: str, parameter: Parameter, arg: Any) -> bytes:
        if hasattr(arg, "encode") and hasattr(arg, "tensor"):
            value = arg.encode(self.addresses[name])
        elif name in self.addresses or arg is None:
            value = np.uint64(self.addresses.get(name, 0)).tobytes()
        elif isinstance(arg, np.generic):
            self._require_kind(name, parameter, arg)
            value = arg.tobytes()
        elif isinstance(arg, bytes | bytearray):
            value = bytes(arg)
        else:
            raise self._error(
                f"argument {name}: expected a tensor, None, bytes or a numpy scalar, got {type(arg).__name__} {arg!r}"
            )
        if len(value) != parameter.size:
            raise self._error(
                f"argument {name}: the parameter has {parameter.size} bytes, got {len(value)} ({_kind_of(arg)})"
            )
        return value  # type: ignore[no-any-return]

    def _require_kind(self, name: str, parameter: Parameter, arg: np.generic) -> None:
        """A float must not arrive where the kernel reads an integer, or the reverse."""
        kinds = {"f": "f", "u": "iub", "s": "iub"}.get(parameter.type[0], "fiub")
        if arg.dtype.kind not in kinds:
            raise self._error(f"argument {name}: the parameter is .{parameter.type}, got {_kind_of(arg)}")

    def _buffer(self, name: str, arg: Any) -> _Buffer | None:
        tensor = arg.tensor if hasattr(arg, "encode") and hasattr(arg, "tensor") else arg
        if hasattr(tensor, "data_ptr"):
            return self._tensor(name, tensor)
        if isinstance(tensor, np.ndarray):
            return _array(name, tensor)
        return None

    def _tensor(self, name: str, tensor: Any) -> _Buffer:
        if tensor.device.type != "cpu":
            raise self._error(f"argument {name}: expected a CPU tensor, got one on {tensor.device}")
        shape, stride, size = tuple(tensor.shape), tensor.stride(), tensor.element_size()
        pointer = tensor.data_ptr()
        hi = (
            pointer + (1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))) * size
            if tensor.numel()
            else pointer
        )
        text = f"of shape {_shape(shape)} ({str(tensor.dtype).removeprefix('torch.')})"
        steps = tuple(zip(shape, (s * size for s in stride), strict=True))
        return _Buffer(name, pointer, pointer, hi, tensor.untyped_storage().data_ptr(), text, steps)

    def _error(self, message: str) -> EmulatorError:
        return EmulatorError(message, kind="argument", kernel=self.kernel)


def _array(name: str, array: np.ndarray) -> _Buffer:
    pointer = array.__array_interface__["data"][0]
    lo, hi = np.lib.array_utils.byte_bounds(array)
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    text = f"of shape {_shape(array.shape)} ({array.dtype})"
    steps = tuple(zip(array.shape, array.strides, strict=True))
    return _Buffer(name, pointer, lo, hi if array.size else lo, base.__array_interface__["data"][0], text, steps)


def _bytes(base: int, end: int) -> np.ndarray:
    size = -(-(end - base) // 16) * 16
    return machine_bytes(base, size) if size else np.zeros(0, np.uint8)


def _shape(shape: Sequence[int]) -> str:
    return "x".join(str(n) for n in shape) or "()"


def _kind_of(arg: Any) -> str:
    return str(arg.dtype) if isinstance(arg, np.generic) else type(arg).__name__
