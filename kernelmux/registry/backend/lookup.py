"""Who can compute an operator: backends found by folder name or entry point, implementations found by file name.

A backend is a package with `BACKEND = Backend(...)` in its `__init__` and one module per operator that ends in
`VARIANTS = {name: Implementation(...)}`, in ladder order; the last variant whose conditions hold is the one
that a plain `backend="cuda"` runs. Packages in `kernelmux.backends` are found by name; others announce their package in
the entry-point group `kernelmux.backends`. Nothing is imported before it is needed.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernelmux.registry import catalog, elsewhere
from kernelmux.registry.backend.description import Backend, Implementation
from kernelmux.registry.backend.validation import check_backend, check_ladder
from kernelmux.registry.errors import ArgumentError, BackendUnavailable, KernelmuxError, SpecError, cut, unknown
from kernelmux.registry.spec.op_spec import OpSpec
from kernelmux.registry.spec.signature import Call
from kernelmux.registry.util import entry_points, torch_modes
from kernelmux.registry.util.fingerprint import digest, sources


def _packages() -> dict[str, str]:
    """Backend name -> package that holds it."""
    found = entry_points.find().packages
    return {**found, **guests} if guests else found


guests: dict[str, str] = {}  # of backends that are registered for a while: see `temporary_backends.announced`


def backends() -> tuple[str, ...]:
    """Names of all registered backends, whether they work here or not."""
    return tuple(sorted(_packages()))


def backend_names() -> tuple[str, ...]:
    """Names of all registered backends, whether they work here or not."""
    return backends()


def package(name: str) -> str:
    """The package that holds a registered backend."""
    return _packages()[name]


@cache
def backend(name: str) -> Backend:
    """The backend of that name; BackendUnavailable if it cannot be imported, SpecError if it is not well formed."""
    if name not in _packages():
        raise unknown("backend", name, backends())
    if name in (wrong := entry_points.find().wrong):
        raise BackendUnavailable(f'backend "{name}" cannot be used: {wrong[name]}')
    module = _module(name, _packages()[name], f'backend "{name}" is registered but')
    return check_backend(name, _packages()[name], getattr(module, "BACKEND", None))


# Entered around each import of a module of a backend, with the names of both: what judges backends watches them there.
around_imports: list[Callable[[str, str], AbstractContextManager[None]]] = []


def _module(backend: str, name: str, who: str) -> ModuleType:
    """An imported module; BackendUnavailable, beginning with `who`, whatever goes wrong in it.

    The first call may come from inside a transform, a trace or a mode: none of them holds while the module is imported.
    """
    if problem := _broken.get(name):
        raise BackendUnavailable(f"{who} cannot be imported: {problem}")
    try:
        with ExitStack() as watching:
            for watch in around_imports:
                watching.enter_context(watch(backend, name))
            watching.enter_context(torch_modes.outside())
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        _broken[name] = f"{type(error).__name__}: {error}"
        raise BackendUnavailable(f"{who} cannot be imported: {_broken[name]}") from error


_broken: dict[str, str] = {}  # modules that failed once: to import them again at each call would only take time


@cache
def unavailable(name: str, device: torch.device) -> str | None:
    """Why a backend cannot work for tensors on `device`, or None; never raises."""
    try:
        reason: object = backend(name).unavailable(device)
    except KernelmuxError as error:
        return str(error)
    except Exception as error:
        return f'backend "{name}" cannot say whether it works here: {type(error).__name__}: {error}'
    if reason is None or isinstance(reason, str):
        return reason or None
    return f'backend "{name}" cannot say whether it works here: expected None or a text, got {reason!r}'


def emulates(name: str, device: torch.device) -> bool:
    """Whether the backend runs tensors of `device` on the emulator; False for one that cannot be imported."""
    return device.type == "cpu" and loads(name) and backend(name).emulates


def composite(name: str) -> bool:
    """Whether the backend is made of torch's operators; False for one that cannot be imported."""
    return loads(name) and backend(name).composite


def loads(name: str) -> bool:
    """Whether the package of a backend can be imported and is well formed."""
    try:
        backend(name)
    except KernelmuxError:
        return False
    return True


def implements(name: str, op: str) -> bool:
    """Whether the backend has a module for the operator, without importing it; False for one that cannot be imported.

    It lies in the backend's package, or in one with operators (`elsewhere`).
    """
    return loads(name) and (bool(_homes(name, op)) or any(elsewhere.joining(name, op)))


def _homes(name: str, op: str) -> list[str]:
    """The packages that hold the module of a backend for an operator: that of the operator, and that of the backend."""
    owner, found = elsewhere.owner(op), list[str]()
    if owner and op in owner.implements(name):
        found.append(owner.home(name))
    try:
        own = importlib.util.find_spec(f"{_packages()[name]}.{op}") is not None
    except (ImportError, ValueError):  # a module that is no package has no modules
        own = False
    return [*found, _packages()[name]] if own else found


@cache
def variants(name: str, op: str) -> dict[str, Implementation]:
    """The backend's implementations of an operator in ladder order; empty if it has none.

    Those that other packages join to it come first, under the names of their packages ("theirs.blocked"); such a module
    that cannot be used is left out, and `refused` says why. BackendUnavailable if the backend or its module cannot be
    imported, SpecError if the module is not well formed.
    """
    spec, home = catalog.spec(op), backend(name)
    found: dict[str, Implementation] = {}
    for package in elsewhere.joining(name, op):
        try:
            found |= _ladder(home, package.home(name), spec, f"{package.name}.")
        except KernelmuxError as error:
            refused[name, op, package.name] = str(error)
    for package_name in _homes(name, op):
        found |= _ladder(home, package_name, spec)
    return found


refused: dict[tuple[str, str, str], str] = {}  # (backend, operator, package that joins a module to them) -> why


def _ladder(home: Backend, package: str, spec: OpSpec, prefix: str = "") -> dict[str, Implementation]:
    """The implementations in one module. prefix: of the names of those that come before the ladder of the backend."""
    file = f"{package}.{spec.name}"
    module = _module(
        home.name, file, f"{home.name}: its module for {spec.name}" if package == _packages()[home.name] else file
    )
    found = getattr(module, "VARIANTS", None)
    if prefix and isinstance(found, dict):
        found = {f"{prefix}{variant}": implementation for variant, implementation in found.items()}
    return check_ladder(home, module.__name__, spec, found, joins=bool(prefix))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variant as a choice sees it: all that it asks of one and that no call changes.

    name: "cuda/tiled". home: its backend. composite: that is made of torch's operators. emulated: calls of this device run
    on the emulator. joined: see `joined`. varies: equal calls may give other bits, and torch's flag does not change that.
    own: of kernelmux itself. declared: as `Implementation.declared`.
    """

    name: str
    variant: str
    home: Backend
    implementation: Implementation
    composite: bool
    emulated: bool
    joined: bool
    varies: bool
    own: bool
    declared: str


@dataclass(frozen=True, slots=True)
class Ladder:
    """The candidates of one backend for an operator, in ladder order; down: why it cannot be used here, else ""."""

    candidates: tuple[Candidate, ...]
    down: str = ""


@cache
def ladder(name: str, op: str, device: torch.device, elsewhere: bool = False) -> Ladder:
    """What a backend has for an operator and calls on a device; elsewhere: whether it works here does not matter."""
    if not elsewhere and (reason := unavailable(name, device)):
        return Ladder((), reason)
    try:
        found, home = variants(name, op), backend(name)
    except KernelmuxError as error:
        return Ladder((), str(error).removeprefix(f"{name}: "))
    emulated = emulates(name, device)
    own = _packages().get(name, "").startswith("kernelmux.")
    return Ladder(
        tuple(
            Candidate(
                name=f"{name}/{variant}",
                variant=variant,
                home=home,
                implementation=implementation,
                composite=composite(name),
                emulated=emulated,
                joined=joined(op, variant),
                varies=varies(name, implementation),
                own=own,
                declared=implementation.declared,
            )
            for variant, implementation in found.items()
        )
    )


def varies(name: str, implementation: Implementation) -> bool:
    """Whether equal calls of a variant of this backend may give other bits, and torch's flag does not change that."""
    return not implementation.deterministic and not composite(name)


def by_priority(device: torch.device, elsewhere: bool = False) -> tuple[str, ...]:
    """Backends by priority; never one that would be emulated, which is not even asked whether it could be."""
    if _machine:
        device, elsewhere = _machine[-1], True
    return _by_priority(device, elsewhere, backends())


_machine: list[torch.device] = []  # of `on_another_machine`


@contextmanager
def on_another_machine(device: torch.device) -> Iterator[None]:
    """Inside, calls on any device have the priorities of one like this, which this machine need not have.

    For watching which calls a program makes, where none of them runs.
    """
    _machine.append(device)
    try:
        yield
    finally:
        _machine.pop()


@cache
def _by_priority(device: torch.device, elsewhere: bool, names: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(n for n in names if not emulates(n, device))
    usable = [n for n in names if (loads(n) if elsewhere else not unavailable(n, device))]
    return tuple(sorted(usable, key=lambda n: -backend(n).priority))


def forget() -> None:
    """Look at packages, backends and modules again when they are next asked for."""
    for cached in (backend, unavailable, variants):
        cached.cache_clear()
    refused.clear()
    forget_ladders()


def forget_ladders() -> None:
    """Make the candidates of each operator anew from what is known of backends and modules."""
    ladder.cache_clear()
    _by_priority.cache_clear()


def joined(op: str, variant: str) -> bool:
    """Whether a variant comes from a package that joined it: then no bare name of a backend stands for it."""
    return elsewhere.of_variant(op, variant) is not None


def split(name: str, where: str = "") -> tuple[str, str | None]:
    """ "cuda/tiled" -> ("cuda", "tiled"), "cuda" -> ("cuda", None); UnknownName if the backend is not registered."""
    if name in _packages():
        return name, None
    head, slash, tail = name.partition("/")
    if head not in _packages():
        raise unknown("backend", head, backends(), where)
    if slash and not tail:
        raise ArgumentError(
            f'backend: expected the name of a variant behind "/", got "{cut(name)}" from {where or "a request"}'
        )
    return head, tail or None


def fits(x: torch.Tensor, layout: str) -> bool:
    """Whether the strides of a tensor satisfy a layout."""
    if layout == "any" or x.numel() == 0 or x.is_contiguous():
        return True
    if layout == "last":
        return x.dim() > 0 and (x.stride(-1) == 1 or x.shape[-1] == 1)
    if layout == "matrix":
        (m, n), (sm, sn) = x.shape[-2:], x.stride()[-2:]
        return (sn == 1 and sm >= n) or (sm == 1 and sn >= m)
    return False


def laid_out(call: Call, implementation: Implementation) -> tuple[Any, ...]:
    """The arguments of a call as an implementation takes them, its tensors in the layouts that it reads."""
    return tuple(_laid_out(value, implementation.layout.get(name, "any")) for name, value in call.arguments.items())


def _laid_out(value: Any, layout: str) -> Any:
    return value if not isinstance(value, torch.Tensor) or fits(value, layout) else value.contiguous()


def folder(name: str) -> Path | None:
    """Where the files of a backend's package are; None for one that cannot be found."""
    try:
        found = importlib.util.find_spec(_packages()[name])
    except (ImportError, ValueError):
        return None
    places = found.submodule_search_locations if found else None
    return Path(next(iter(places))) if places else None


def source_hash(name: str, op: str, variant: str = "") -> str:
    """Twelve hex digits over the files that a backend's implementation of an operator is made of.

    These are `fingerprint.sources` but for files named `_*_emulated.py`, which only work where there is no GPU: what a
    GPU has verified does not depend on them. Of an operator, or of a variant, from a package elsewhere they are files of
    that package, and those of the backend that these use.
    """
    package = _packages()[name]
    module = importlib.import_module(package)
    home = Path(_module_file(module)).parent
    if (theirs := elsewhere.whose(op, variant)) and op in theirs.implements(name):
        files = sources(theirs.folder, theirs.package, f"{elsewhere.BACKENDS}.{name}.{op}", (home, package))
        roots: tuple[Path, ...] = (theirs.folder, home)
    else:
        stem = getattr(module, "STEM", op)  # of a function from a file of any name
        files, roots = sources(home, package, stem), (home,)
    found = sorted(p for p in files if not p.name.endswith("_emulated.py"))
    return digest(text for p in found for text in (_within(p, roots), p.read_text()))


def _within(path: Path, roots: Sequence[Path]) -> str:
    """The path of a file below the first of these folders that holds it."""
    return next(path.relative_to(root).as_posix() for root in roots if path.is_relative_to(root))


def _module_file(module: ModuleType) -> str:
    if module.__file__ is None:
        raise SpecError(f"{module.__name__}: a backend must be a package with an __init__.py")
    return module.__file__
