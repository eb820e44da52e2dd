"""Typed kernel signatures: `"x* y* n:i32 scale:f32 a:map"` says how each argument crosses the launch.

`name*` is a pointer, `name:i32|i64|u32|f32|f64` a number, `name:map` a TMA descriptor, `name:struct` a struct by value
(its bytes).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

_INTEGERS: dict[str, Any] = {"i32": np.int32, "i64": np.int64, "u32": np.uint32}
_FLOATS: dict[str, Any] = {"f32": np.float32, "f64": np.float64}
_FORMATS = {"pointer": "Q", "i32": "i", "i64": "q", "u32": "I", "f32": "f", "f64": "d"}  # of the struct module
_LARGEST_F32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class KernelParameter:
    """One kernel parameter; `kind` is "pointer", "map", "struct" or a scalar type such as "i32"."""

    name: str
    kind: str

    @property
    def is_scalar(self) -> bool:
        return self.kind in _INTEGERS or self.kind in _FLOATS


def parse(signature: str) -> tuple[KernelParameter, ...]:
    """The parameters of `signature`; ValueError names the word that is not one."""
    return tuple(_parse_word(word, signature) for word in signature.split())


def _parse_word(word: str, signature: str) -> KernelParameter:
    if word.endswith("*"):
        return KernelParameter(word[:-1], "pointer")
    name, _, kind = word.partition(":")
    if kind not in {"map", "struct", *_INTEGERS, *_FLOATS}:
        raise ValueError(
            f"{word!r} in kernel signature {signature!r}: expected name* or name:i32|i64|u32|f32|f64|map|struct"
        )
    return KernelParameter(name, kind)


def form(parameter: KernelParameter, value: Any) -> str:
    """The struct module's letters for a parameter, of whose value only the bytes of a map or struct matter."""
    return _FORMATS.get(parameter.kind) or f"{len(value)}s"


def scalar_converter(kernel: str, parameter: KernelParameter) -> Callable[[Any], Any]:
    """A function from a Python number to the numpy scalar of exactly the parameter's size.

    CuPy passes a bare Python int as 8 bytes and a float as a double, whatever the kernel declares.
    TypeError for a number of the wrong kind, OverflowError for one that does not fit.
    """
    if parameter.kind in _INTEGERS:
        return _integer(kernel, parameter)
    return _float(kernel, parameter)


def _integer(kernel: str, parameter: KernelParameter) -> Callable[[Any], Any]:
    make, limits = _INTEGERS[parameter.kind], np.iinfo(_INTEGERS[parameter.kind])
    low, high = int(limits.min), int(limits.max)

    def convert(value: Any) -> Any:
        if type(value) is not int:
            raise TypeError(f"{kernel}: {parameter.name} is {parameter.kind}, got {value!r} ({type(value).__name__})")
        if not low <= value <= high:
            raise OverflowError(f"{kernel}: {parameter.name} = {value} does not fit {parameter.kind}")
        return make(value)

    return convert


def _float(kernel: str, parameter: KernelParameter) -> Callable[[Any], Any]:
    make, single = _FLOATS[parameter.kind], parameter.kind == "f32"

    def convert(value: Any) -> Any:
        if type(value) is not float and type(value) is not int:
            raise TypeError(f"{kernel}: {parameter.name} is {parameter.kind}, got {value!r} ({type(value).__name__})")
        if single and _LARGEST_F32 < abs(value) < float("inf"):
            raise OverflowError(f"{kernel}: {parameter.name} = {value} does not fit {parameter.kind}")
        return make(value)

    return convert
