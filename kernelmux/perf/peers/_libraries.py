"""How a function of another library becomes an implementation."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from kernelmux.perf.peers import ABSENT
from kernelmux.registry.backend import Implementation
from kernelmux.registry.conditions import Condition
from kernelmux.registry.spec import Call


@dataclass(frozen=True)
class Installed:
    """The library can be imported here."""

    library: str

    def check(self, call: Call) -> str | None:
        try:
            found = importlib.util.find_spec(self.library)
        except ModuleNotFoundError:  # of the package that would hold it
            found = None
        return None if found else f"{self.library} {ABSENT}"

    @property
    def text(self) -> str:
        return f"{self.library} installed"


def function(name: str) -> Callable[..., Any]:
    """The function of a dotted name, imported at the first call."""
    module, _, attribute = name.rpartition(".")

    @cache
    def imported() -> Any:
        return getattr(importlib.import_module(module), attribute)

    return lambda *args, **kwargs: imported()(*args, **kwargs)


def compiled(fn: Callable[..., Any], *requires: Condition, **more: Any) -> Implementation:
    """torch.compile of a function, once per shape. more: of its implementation."""

    @cache
    def torch_compiled() -> Callable[..., Any]:
        torch._dynamo.config.recompile_limit = 256
        return torch.compile(fn, dynamic=False)

    def call(*args: Any) -> Any:
        return torch_compiled()(*args)

    return Implementation(fn=_named(call, fn), idea="torch.compile", requires=requires, **more)


def through_torch(idea: str, fn: Callable[..., Any], *requires: Condition, **more: Any) -> Implementation:
    """A function of torch that runs a library which comes with it: cuBLAS, cuDNN. more: of its implementation."""
    return Implementation(fn=fn, idea=idea, requires=requires, **more)


def library(name: str, fn: Callable[..., Any], *requires: Condition, **more: Any) -> Implementation:
    """A function that calls the library of that name. more: of its implementation."""
    return Implementation(fn=fn, idea=name, requires=(Installed(name), *requires), **more)


def _named(call: Callable[..., Any], fn: Callable[..., Any]) -> Callable[..., Any]:
    """`call` with the parameters of `fn`, which the registry compares with those of the spec."""
    call.__wrapped__ = fn  # type: ignore[attr-defined]
    return call


def columns_first(b: torch.Tensor) -> torch.Tensor:
    """b [K N] with K contiguous, as libraries of 8-bit products want it: a copy in every call where it is not."""
    return b if b.stride(0) == 1 else b.mT.contiguous().mT


def once(convert: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """The conversion of what a caller would hold as the library wants it: a copy is made once for each tensor, and kept as
    long as that."""
    kept: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    @wraps(convert)
    def converted(x: torch.Tensor) -> torch.Tensor:
        if x in kept:
            found: torch.Tensor = kept[x]
            return found
        y = convert(x)
        if y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr():  # a view would keep x
            kept[x] = y
        return y

    return converted


@once
def single(x: torch.Tensor) -> torch.Tensor:
    """x in fp32: some libraries keep weights so."""
    return x.float()
