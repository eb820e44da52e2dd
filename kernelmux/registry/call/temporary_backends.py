"""Backends that are registered for a while: families of broken kernels, or one function from any file.

`--impl path.py:function --op softmax` is a backend "impl" with one variant, called like the function. It takes the
arguments of the operator, in order, and gets them checked and normalised, as a kernel does; those with a default that it
lacks stay at that. The file may also hold an `Implementation` under that name: it declares conditions, layouts and
arithmetic; a function has those of torch's own.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend import tamper_guard
from kernelmux.registry.backend.description import Backend, Implementation, kernels_of
from kernelmux.registry.backend.validation import check_implementation, check_rounds
from kernelmux.registry.call import dispatch
from kernelmux.registry.errors import ArgumentError, KernelmuxError, SpecError, unknown

NAME, PACKAGE = "impl", "kernelmux_impl"
BASELINE = "torch_ref"


@contextmanager
def announced(packages: Mapping[str, str]) -> Iterator[None]:
    """Packages by backend name are registered while this lasts, as if a distribution had announced them."""
    before = dict(registered.guests)
    registered.guests.update(packages)
    try:
        yield
    finally:
        registered.guests.clear()
        registered.guests.update(before)
        registered.forget()
        dispatch._plans.clear()


@dataclass(frozen=True)
class Guest:
    """A function, or an `Implementation`, that a suite is given. kernels: of which backends it has kernels."""

    found: Any
    kernels: tuple[str, ...] = ()


def imported(path: Path, name: str) -> Guest:
    """What lies under a name of a file that is imported in this process."""
    with tamper_guard.blamed(NAME):
        source = _imported(path)
    known = [n for n, v in vars(source).items() if callable(v) and getattr(v, "__module__", "") == source.__name__]
    if not hasattr(source, name):
        raise unknown(f"function of {path.name}", name, known, "--impl")
    return Guest(getattr(source, name), kernels_of(source))


@contextmanager
def joined(text: str, op: str, opened: Callable[[Path, str], Guest] = imported) -> Iterator[None]:
    """The function `text` ("path.py:function") is the backend "impl" while this lasts; nothing happens for "".

    opened: how to come by it; a suite that does not trust it has it run in another process.
    """
    if not text or NAME in registered.backends():
        yield
        return
    made = _modules(text, op, opened)
    sys.modules.update(made)
    try:
        with announced({NAME: PACKAGE}):
            yield
    finally:
        for name in (*made, f"{PACKAGE}_{located(text)[0].stem}"):
            sys.modules.pop(name, None)
        tamper_guard.forget()


def located(text: str) -> tuple[Path, str]:
    """File and name of "path.py:function"; ArgumentError if it is not written so or there is no such file."""
    file, _, name = text.rpartition(":")
    if not file or not name.isidentifier():
        raise ArgumentError(f"--impl: expected path.py:function, got {text!r}")
    path = Path(file).expanduser().absolute()
    if not path.is_file():
        raise ArgumentError(f"--impl: no such file: {file} (of {text!r}; expected path.py:function)")
    return path, name


def check_ops(ops: tuple[str, ...]) -> None:
    """ArgumentError unless --impl stands beside one operator."""
    if len(ops) != 1:
        given = f"--op {' '.join(ops)}" if ops else "none"
        raise ArgumentError(f"--impl: expected the one operator that it computes (--op softmax), got {given}")


def _modules(text: str, op: str, opened: Callable[[Path, str], Guest]) -> dict[str, ModuleType]:
    """A package with the backend and its module for the operator, made of the user's file."""
    path, name = located(text)
    candidate = opened(path, name)
    package = ModuleType(PACKAGE)
    package.__file__, package.__path__ = str(path), []
    package.__spec__ = ModuleSpec(PACKAGE, None, origin=str(path), is_package=True)
    package.__spec__.submodule_search_locations = [str(path.parent)]
    package.BACKEND = _backend(path, name, candidate.kernels)  # type: ignore[attr-defined]
    package.STEM, package.GIVEN = path.stem, text  # type: ignore[attr-defined]
    module = ModuleType(f"{PACKAGE}.{op}")
    module.__spec__ = ModuleSpec(module.__name__, None, origin=str(path))
    module.VARIANTS = {name: _implementation(text, op, candidate.found)}  # type: ignore[attr-defined]
    return {PACKAGE: package, module.__name__: module}


def _imported(path: Path) -> ModuleType:
    """The module of a file, which lies in no package; it may import what lies beside it."""
    name = f"{PACKAGE}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ArgumentError(f"--impl: expected a Python file, got {path}")
    made = sys.modules[name] = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(made)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ArgumentError(f"--impl: {path} cannot be imported: {type(error).__name__}: {error}") from error
    return made


def _implementation(text: str, op: str, found: Any) -> Implementation:
    if not isinstance(found, Implementation):
        if not callable(found):
            raise ArgumentError(f"--impl {text}: expected a function or an Implementation, got {found!r}")
        idea = next(iter((getattr(found, "__doc__", None) or "").strip().splitlines()), "") or f"from {text}"
        found = Implementation(fn=found, idea=idea, arithmetic=_arithmetic(op))
    made: Implementation = found
    try:
        label = f"{NAME}/{text.rpartition(':')[2]}"
        check_implementation(label, catalog.spec(op), made)
        check_rounds(label, catalog.spec(op), made, composite=False, last=True)
    except SpecError as error:
        raise ArgumentError(f"--impl {text}: {error}") from error
    return made


def _arithmetic(op: str) -> Any:
    """How torch accumulates this operator: a function that declares nothing is held to the same bound."""
    ladder = registered.variants(BASELINE, op)
    return list(ladder.values())[-1].arithmetic if ladder else catalog.spec(op).arithmetics[0]


def _backend(path: Path, name: str, used: Sequence[str]) -> Backend:
    """As the backend of Triton, or of CUDA, where the file has kernels of it: without a GPU they are emulated."""
    summary = f"{name} of {path.name}"
    if not used:
        return Backend(NAME, summary, priority=-1, unavailable=lambda device: None)
    home = registered.backend(used[0])
    return Backend(NAME, summary, priority=-1, unavailable=_without_gpu(home), emulates=True, emulation=home.emulation)


def _without_gpu(kernels: Backend) -> Any:
    def unavailable(device: torch.device) -> str | None:
        try:
            return kernels.unavailable(device)
        except KernelmuxError as error:
            return str(error)

    return unavailable
