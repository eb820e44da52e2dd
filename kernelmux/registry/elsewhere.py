"""Operators, and variants of known ones, in packages of their own: found by the names of their files, as ours are.

A package that is announced in the entry-point group `kernelmux.operators` holds `ops/<op>.py` with a SPEC, and
`backends/<backend>/<op>.py` with VARIANTS that join a registered backend. Nothing is imported to list them.
"""

from __future__ import annotations

import importlib
import importlib.util
import keyword
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from kernelmux.registry import ops
from kernelmux.registry.util import entry_points

OPS, BACKENDS = "ops", "backends"


@dataclass(frozen=True)
class Package:
    """A package with operators. name: that of its entry point. package: what is imported. folder: where its files are."""

    name: str
    package: str
    folder: Path

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators that it says what they mean."""
        return _modules(self.folder / OPS)

    @property
    def backends(self) -> tuple[str, ...]:
        """The names of the backends that it has variants for."""
        home = self.folder / BACKENDS
        found = sorted(p.name for p in home.iterdir() if p.is_dir()) if home.is_dir() else []
        return tuple(name for name in found if not name.startswith(("_", ".")))

    def implements(self, backend: str) -> tuple[str, ...]:
        """The operators that it has a module for in a backend."""
        return _modules(self.folder / BACKENDS / backend)

    def home(self, backend: str) -> str:
        """The package that holds its modules for a backend."""
        return f"{self.package}.{BACKENDS}.{backend}"


@cache
def _modules(folder: Path) -> tuple[str, ...]:
    found = (module.name for module in pkgutil.iter_modules([str(folder)]))
    return tuple(sorted(name for name in found if not name.startswith("_")))


@dataclass(frozen=True)
class OperatorPackages:
    """packages: by entry point. owners: the package of each operator that is not ours. wrong: what of them is refused, by
    the name of a package, or of a package and an operator ("theirs: softmax"), and why; refused: that by operator."""

    packages: dict[str, Package]
    owners: dict[str, Package]
    wrong: dict[str, str]
    refused: dict[str, str]


@lru_cache(maxsize=1)
def listed() -> OperatorPackages:
    """All packages with operators, without an import."""
    found = entry_points.find_operators()
    wrong, packages = dict(found.wrong), dict[str, Package]()
    for name, package in found.packages.items():
        if name in wrong:
            continue
        if place := folder(package):
            packages[name] = Package(name, package, place)
        else:
            wrong[name] = f"the package {package} has no folder here: is it installed, and spelt so?"
    owners, refused = dict[str, Package](), dict[str, str]()
    for op in sorted({op for package in packages.values() for op in package.operators}):
        having = [package for package in packages.values() if op in package.operators]
        if why := _refusal(op, having):
            wrong |= {f"{package.name}: {op}": why for package in having}
            refused[op] = why
        else:
            owners[op] = having[0]
    return OperatorPackages(packages, owners, wrong, refused)


def folder(package: str) -> Path | None:
    """Where a package's files are, by the place of its outermost one, which is not imported for it."""
    top, *inner = package.split(".")
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    places = found.submodule_search_locations if found else None
    return next((path for place in places or () if (path := Path(place).joinpath(*inner)).is_dir()), None)


def _refusal(op: str, having: list[Package]) -> str | None:
    """Why no operator of packages elsewhere can have this name, or None."""
    where = " and ".join(f"{package.package}.{OPS}.{op}" for package in having)
    if op in own():
        return f'the name "{op}" belongs to an operator of kernelmux: {where} needs another one'
    if op in _taken():
        return f'the name "{op}" is public in kernelmux and means something else: {where} needs another one'
    if (
        not op.isidentifier()
        or not op.isascii()
        or op != op.lower()
        or keyword.iskeyword(op)
        or keyword.issoftkeyword(op)
    ):
        return f'the name "{op}" cannot be that of a function in lower case: {where} needs another one'
    return f'the operator "{op}" is announced by {where}: uninstall all but one' if len(having) > 1 else None


@lru_cache(maxsize=1)
def own() -> tuple[str, ...]:
    """The operators of kernelmux itself, in alphabetical order."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(ops.__path__) if not m.name.startswith("_")))


def _taken() -> set[str]:
    """What `kernelmux.<name>` means beside operators."""
    face = importlib.import_module("kernelmux")
    of_module = {name for name, value in vars(face).items() if getattr(value, "__module__", "") != face.__name__}
    return {*face._API, *face._NN, *of_module, *(module.name for module in pkgutil.iter_modules(face.__path__))}


def owner(op: str) -> Package | None:
    """The package that says what an operator means; None for ours."""
    return listed().owners.get(op)


def joining(backend: str, op: str) -> Iterator[Package]:
    """The packages with variants in a backend for an operator that another package, or kernelmux, says the meaning of."""
    whose = owner(op)
    return (p for p in listed().packages.values() if p is not whose and op in p.implements(backend))


def of_variant(op: str, variant: str) -> Package | None:
    """The package that a variant comes from, whose entry point begins its name; None for those of the operator's own."""
    head, dot, _ = variant.partition(".")
    found = listed().packages.get(head) if dot else None
    return found if found is not owner(op) else None


def whose(op: str, variant: str = "") -> Package | None:
    """The package whose files a variant, or an operator, is made of; None for ours and those of a backend elsewhere."""
    return of_variant(op, variant) or owner(op)


def forget() -> None:
    """List the packages again when they are next asked for."""
    for cached in (entry_points.find_operators, listed, _modules):
        cached.cache_clear()
