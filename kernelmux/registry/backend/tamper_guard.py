"""What an implementation must not do: patch what judges and times it, or call what it is compared with.

Both have passed suites elsewhere. A snapshot of the functions of this project, of `time`, `torch.testing` and what
compares tensors and times streams is taken before a function is loaded (`watched`); what differs afterwards is named
and put back, so that everything else is judged as it should be. `Alarm` hears the reference and other backends run.
"""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch

from kernelmux.registry import elsewhere
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.spec.signature import Spec

OWN = tuple(f"kernelmux.{part}" for part in ("registry", "conformance", "perf", "emulator"))
TORCH = ("equal", "allclose", "isclose", "empty", "empty_like")
CUDA = ("Event", "Stream", "CUDAGraph", "synchronize", "current_stream", "stream", "_sleep", "empty_cache")

Key = tuple[str, str]
_before: dict[Key, tuple[Any, Any]] = {}  # owner and name, in words -> the owner, and what it had there
_blamed: dict[str, list[str]] = {}  # backend -> what it patched when it was loaded


@contextmanager
def watched() -> Iterator[None]:
    """While this lasts, patches are found by `patched`; inside of another one it changes nothing."""
    if _before:
        yield
        return
    watch()
    try:
        yield
    finally:
        _before.clear()


def watch() -> None:
    """From here on, for as long as the process lives, patches are found by `patched`."""
    _before.update(_snapshot())


@contextmanager
def blamed(backend: str) -> Iterator[None]:
    """What is patched inside is the backend's doing, in all of its calls."""
    with watched():
        yield
        _blamed.setdefault(backend, []).extend(patched())


def forget() -> None:
    """Forget which backend has replaced what."""
    _blamed.clear()


def patched(backend: str = "") -> list[str]:
    """What was replaced since the snapshot, each put back, and what the backend had replaced when it was loaded."""
    found = list(_blamed.get(backend, ()))
    for (owner, name), (home, value) in _before.items():
        if vars(home).get(name) is not value:
            setattr(home, name, value)
            found.append(f"{owner}.{name}")
    return found


def _snapshot() -> dict[Key, tuple[Any, Any]]:
    found = {(m, n): pair for m, module in _modules() for n, pair in _functions(module).items()}
    found |= {("torch", n): (torch, vars(torch)[n]) for n in TORCH if n in vars(torch)}
    found |= {("torch.cuda", n): (torch.cuda, vars(torch.cuda)[n]) for n in CUDA if n in vars(torch.cuda)}
    for owner, home in (("torch.cuda.Event", torch.cuda.Event), ("torch.cuda.Stream", torch.cuda.Stream)):
        found |= {(owner, n): pair for n, pair in _functions(home).items()}
    return found


def _modules() -> Iterator[tuple[str, Any]]:
    """Modules, and the classes of ours, whose functions are watched."""
    yield from (("time", time), ("torch.testing", torch.testing))
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and name.startswith(OWN):
            yield name, module
            yield from ((f"{name}.{n}", v) for n, v in vars(module).items() if _own_class(v, name))


def _own_class(value: Any, module: str) -> bool:
    return isinstance(value, type) and value.__module__ == module


def _functions(home: Any) -> dict[str, tuple[Any, Any]]:
    kinds = (FunctionType, type(time.time), type, staticmethod, classmethod, property)
    return {n: (home, v) for n, v in vars(home).items() if isinstance(v, kinds) and not n.startswith("__")}


class Alarm:
    """Hears, in a `with`, Python code of the reference of an operator, or of another backend; `heard` says which."""

    def __init__(self, spec: Spec, backend: str) -> None:
        self.spec, self.heard = spec, ""
        self.reference: CodeType | None = getattr(inspect.unwrap(spec.reference), "__code__", None)
        folders = {n: registered.folder(n) for n in registered.backends() if n != backend}
        self.others = {n: f"{f}{os.sep}" for n, f in folders.items() if f and f != registered.folder(backend)}

    def __enter__(self) -> Alarm:
        self.before = sys.getprofile()
        sys.setprofile(self._hear)
        return self

    def __exit__(self, *details: object) -> None:
        sys.setprofile(self.before)

    def _hear(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or self.heard:
            return
        code = frame.f_code
        if code is self.reference:
            package = elsewhere.owner(self.spec.name)
            file = f"{package.package if package else 'registry'}/ops/{self.spec.name}.py"
            self.heard = f"calls the reference, {file}:{code.co_firstlineno}"
        elif not code.co_filename.endswith("__init__.py"):
            other = next((n for n, folder in self.others.items() if code.co_filename.startswith(folder)), "")
            self.heard = f"calls another backend, {other}: {code.co_filename}:{code.co_firstlineno}" if other else ""
