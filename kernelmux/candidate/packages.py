"""Backends of other packages, called in processes of their own: none of their code is imported here.

    with packages.apart("cpu", in_process=("numba",)): ...   # inside, an import of their modules gives stand-ins

A stand-in has what the package declares, as a process tells it: BACKEND, or VARIANTS whose functions are called there. So
the registry finds and checks a backend elsewhere as it does everywhere, and each import of a module of it is a stand-in.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import torch

from kernelmux.candidate import sandbox
from kernelmux.candidate.errors import CandidateError
from kernelmux.candidate.implementation import implementation
from kernelmux.candidate.limits import Limits
from kernelmux.candidate.process import CandidateProcess
from kernelmux.candidate.worker_process import Worker
from kernelmux.registry import elsewhere
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.description import Backend
from kernelmux.registry.backend.package_versions import NotInstalled
from kernelmux.registry.call import dispatch
from kernelmux.registry.errors import unknown
from kernelmux.registry.util import entry_points

RUNNING = 3  # processes of variants at a time: a gradient calls further operators
LIMITS = Limits(start=300.0, call=300.0)  # a package may compile when it is imported, or at its first call
OWN = "kernelmux."
SEEN_INTO = (
    "{} composite, made of torch's operators: autograd has to see into its calls, and these run in another process"
)


class VariantProcess(CandidateProcess):
    """The process of one variant of a package. Few run at a time: it starts again when it is next asked."""

    _running: ClassVar[list[VariantProcess]] = []  # those that were started last come last

    def __init__(self, package: PackageApart, module: str, path: Path, variant: str) -> None:
        super().__init__(path, variant, package.device, LIMITS)
        self.package, self.module, self.begins = package, module, "VARIANTS"

    def _started(self) -> Worker:
        others = [one for one in self._running if one is not self]
        over = max(0, len(others) - RUNNING + 1)
        for one in others[:over]:
            one.close()
        self._running[:] = [*others[over:], self]
        return self.package.worker()

    def _load(self, worker: Worker) -> None:
        worker.load(self.path, self.device, name=self.name, module=self.module)


@dataclass
class PackageApart:
    """A package, or the part of one, whose modules are not imported here.

    name: of its entry point. root: of which all modules are meant. folder: where they are. device: "cpu" or "cuda". joins:
    it is no backend, but has variants that join several. imported: modules of it that are imported here all the same.
    """

    name: str
    root: str
    folder: Path
    device: str
    joins: bool = False
    imported: tuple[str, ...] = ()
    _declaring: Worker | None = None
    _variants: list[VariantProcess] = field(default_factory=list)

    @property
    def around(self) -> dict[str, Path]:
        """The packages that it lies in, with their folders."""
        parts = self.root.split(".")
        return {".".join(parts[:n]): self.folder.parents[len(parts) - n - 1] for n in range(1, len(parts))}

    def has(self, name: str) -> bool:
        """Whether a module is one of these."""
        inner = f"{name}."
        return inner.startswith(f"{self.root}.") and not inner.startswith(tuple(f"{n}." for n in self.imported))

    @cached_property
    def shown(self) -> Path:
        """What its processes see."""
        return sandbox.folder_of(self.root, self.folder)

    def worker(self) -> Worker:
        """A process that sees it, and has imported none of it."""
        return Worker(self.shown, LIMITS, helpers=self.joins)

    def fill(self, module: ModuleType, path: Path) -> None:
        """Give a stand-in what the module declares; ImportError with the reason where that cannot be told."""
        name = module.__name__
        depth = name.removeprefix(self.root).count(".")
        if depth == 0 and not self.joins:
            vars(module)["BACKEND"] = self._backend(self._declared(name, path, backend=True))
        elif depth == (2 if self.joins else 1):
            if self.joins and registered.composite(joined := name.split(".")[-2]):
                raise ImportError(f"{SEEN_INTO.format(f'{joined} is')}; a package that defines operators may join it")
            vars(module)["VARIANTS"] = self._ladder(name, path)

    @property
    def _remedy(self) -> str:
        return f"with --in-process {self.name} it is imported by the suite"

    def close(self) -> None:
        """End its processes."""
        for one in self._variants:
            one.close()
        if self._declaring:
            self._declaring.kill()

    def _declared(self, module: str, path: Path, backend: bool) -> Any:
        if self._declaring and self._declaring.over:
            self._declaring.kill()
            self._declaring = None
        self._declaring = self._declaring or self.worker()
        try:
            return self._declaring.load(path, self.device, "declare", module=module, backend=backend)
        except CandidateError as error:
            raise ImportError(str(error)) from error

    def _backend(self, told: dict[str, Any]) -> Backend | NoDeclaration:
        """The backend that it declares, made of what can be told."""
        if "wrong" in told:
            return NoDeclaration(str(told["wrong"]))
        if told["composite"]:
            raise ImportError(f"{SEEN_INTO.format('it is')}; {self._remedy}")
        reason = told["unavailable"]
        if isinstance(reason, str):
            reason = (NotInstalled if told["install"] else str)(reason)

        def unavailable(device: torch.device) -> str | None:
            return reason if device.type == self.device else f"it was asked whether it works on {self.device}, alone"

        return Backend(
            told["name"],
            told["summary"],
            told["priority"],
            unavailable,
            emulates=told["emulates"] is True,
            cores=(int(told["cores"][0]), int(told["cores"][1])),
        )

    def _ladder(self, module: str, path: Path) -> dict[str, Any] | NoDeclaration:
        told = self._declared(module, path, backend=False)
        if "wrong" in told:
            return NoDeclaration(str(told["wrong"]))
        if "untellable" in told:
            raise ImportError(
                f"it declares what cannot be told to another process: {told['untellable']}; {self._remedy}"
            )
        found = dict[str, Any]()
        for name, claimed in told["variants"]:
            process = VariantProcess(self, module, path, str(name))
            self._variants.append(process)
            found[str(name)] = implementation(process, claimed)
        return found


@dataclass(frozen=True)
class NoDeclaration:
    """What stands where a declaration should: the registry refuses it, and shows it."""

    text: str

    def __repr__(self) -> str:
        return self.text


class StandIns(MetaPathFinder, Loader):
    """Finds and makes the modules of packages that are not imported here, and those around them, which are empty."""

    def __init__(self, packages: Sequence[PackageApart], imported: Sequence[str]) -> None:
        self.packages = packages
        around = {name: place for package in packages for name, place in package.around.items()}
        inside = [f"{name}." for name in imported]
        self.around = {n: place for n, place in around.items() if not any(i.startswith(f"{n}.") for i in inside)}

    def means(self, name: str) -> bool:
        """Whether a module is one of these."""
        return name in self.around or self._package(name) is not None

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """A specification of a stand-in; ModuleNotFoundError for a module that a package of these does not have."""
        if not self.means(fullname):
            return None
        package = self._package(fullname)
        whole = {**self.around, **({package.root: package.folder} if package else {})}
        if fullname in whole:
            file, places = whole[fullname] / "__init__.py", [str(whole[fullname])]
        else:
            found = PathFinder.find_spec(fullname, path)
            if found is None:
                raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
            file, places = Path(found.origin or ""), [*(found.submodule_search_locations or [])]
        made = ModuleSpec(fullname, self, origin=str(file), is_package=bool(places))
        made.submodule_search_locations = places or None
        made.has_location = True
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Give it what the package declares."""
        if (package := self._package(module.__name__)) and module.__spec__:
            package.fill(module, Path(str(module.__spec__.origin)))

    def _package(self, name: str) -> PackageApart | None:
        return max((one for one in self.packages if one.has(name)), key=lambda one: len(one.root), default=None)


@contextmanager
def apart(device: str, in_process: Sequence[str] = ()) -> Iterator[None]:
    """While this lasts, backends of other packages are called in processes of their own, on "cpu" or "cuda".

    in_process: names of those that are imported all the same; UnknownName for one that there is not. Nothing happens inside
    of another one.
    """
    check_names(in_process)
    if any(isinstance(finder, StandIns) for finder in sys.meta_path):
        yield
        return
    kept = reasons(in_process)
    found = [PackageApart(name, package, _folder(package), device) for name, package in _backends() if name not in kept]
    packages = elsewhere.listed().packages.values()
    found += [_joining(package, device) for package in packages if package.name not in in_process]
    defining = [package.package for package in packages if package.operators]
    finder = StandIns(found, [*defining, *(package for name, package in _backends() if name in kept)])
    before = {name: module for name, module in sys.modules.items() if finder.means(name)}
    _forget(before)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for package in found:
            package.close()
        _forget([name for name in sys.modules if finder.means(name)])
        sys.modules.update(before)


def _forget(modules: Sequence[str] | dict[str, ModuleType]) -> None:
    for name in modules:
        sys.modules.pop(name, None)
    if modules:
        registered.forget()
        dispatch._plans.clear()


def _backends() -> list[tuple[str, str]]:
    """The names and packages of backends that are not ours; those that cannot be used are refused without an import."""
    found = entry_points.find()
    others = ((name, package) for name, package in found.packages.items() if name not in found.wrong)
    return [(name, package) for name, package in others if not package.startswith(OWN)]


def _folder(package: str) -> Path:
    return elsewhere.folder(package) or Path(package.replace(".", "/"))


def _joining(package: elsewhere.Package, device: str) -> PackageApart:
    root = f"{package.package}.{elsewhere.BACKENDS}"
    imported = tuple(f"{root}.{name}" for name in _composites(package))
    return PackageApart(package.name, root, package.folder / elsewhere.BACKENDS, device, joins=True, imported=imported)


def _composites(package: elsewhere.Package) -> list[str]:
    """Of a package that says what operators mean: the backends that it joins which are made of torch's operators."""
    known = entry_points.find().packages
    own = [name for name in package.backends if known.get(name, "").startswith(OWN)] if package.operators else []
    return [name for name in own if registered.composite(name)]


def names() -> set[str]:
    """The backends of other packages, and the packages with operators, by their entry points."""
    return {*(name for name, _ in _backends()), *elsewhere.listed().packages}


def check_names(in_process: Sequence[str]) -> None:
    """UnknownName unless these are backends of other packages, or packages with operators."""
    known = sorted(names())
    for name in in_process:
        if name not in known:
            raise unknown("backend of another package", name, known, "--in-process")


def reasons(in_process: Sequence[str]) -> dict[str, str]:
    """Whose variants are imported here though they are of other packages, each with the reason."""
    found = dict.fromkeys(in_process, "--in-process says so")
    packages = elsewhere.listed().packages
    for name, package in _backends():
        inner = (p.package for p in packages.values() if p.operators and f"{p.package}.".startswith(f"{package}."))
        if holds := next(inner, None):
            found.setdefault(name, f"{package} is imported with the operators of {holds}, which it holds")
    for name, joining in packages.items():
        if composites := _composites(joining):
            found.setdefault(name, f"for its variants in {', '.join(composites)}, into whose calls autograd has to see")
    return found
