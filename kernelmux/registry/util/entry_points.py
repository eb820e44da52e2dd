"""Which packages announce a backend or operators, and what is wrong with those that cannot: a bad one disturbs no other."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata

ENTRY_POINTS = "kernelmux.backends"
OPERATORS = "kernelmux.operators"
RESERVED = {"": "is empty", "auto": 'stands for "by priority"'}
SEPARATORS = {"/": "begins the name of a variant", ",": "separates the names of a chain"}


@dataclass(frozen=True)
class EntryPointPackages:
    """packages: name -> package. wrong: the names among them that cannot be used, and why."""

    packages: dict[str, str]
    wrong: dict[str, str]


_announced: dict[str, str] = {}
_with_operators: dict[str, str] = {}


def announce(name: str, package: str) -> None:
    """Make a package known as a backend of this process, beside those that are installed."""
    _announced[name] = package
    find.cache_clear()


def announce_operators(name: str, package: str) -> None:
    """Make a package with operators (`elsewhere`) known to this process, beside those that are installed."""
    _with_operators[name] = package
    importlib.import_module("kernelmux.registry.call.dispatch").refresh()


@lru_cache(maxsize=1)
def find() -> EntryPointPackages:
    """The backends of this package, which win over all others, and those that entry points or a call announce."""
    home = importlib.import_module("kernelmux.backends")
    own = {m.name: f"{home.__name__}.{m.name}" for m in pkgutil.iter_modules(home.__path__) if m.ispkg}
    installed = [(point.name, point.value) for point in metadata.entry_points(group=ENTRY_POINTS)]
    return add(own, [*installed, *_announced.items()])


@lru_cache(maxsize=1)
def find_operators() -> EntryPointPackages:
    """The packages with operators that entry points or a call announce."""
    installed = [(point.name, point.value) for point in metadata.entry_points(group=OPERATORS)]
    others = dict[str, set[str]]()
    for name, package in [*installed, *_with_operators.items()]:
        others.setdefault(name, set()).add(package)
    wrong = {name: problem for name, values in others.items() if (problem := _no_prefix(name, sorted(values)))}
    return EntryPointPackages({name: min(values) for name, values in sorted(others.items())}, wrong)


def _no_prefix(name: str, packages: list[str]) -> str | None:
    """Why a name cannot stand before those of variants, or None."""
    if not (name.isidentifier() and name.isascii()):
        where = " and ".join(packages)
        return (
            f'the name "{name}" begins the names of variants: expected letters, digits and _; {where} needs another one'
        )
    return _unusable(name, packages)


def add(own: dict[str, str], announced: Iterable[tuple[str, str]]) -> EntryPointPackages:
    """Names and packages of plugins beside our own ones; a plugin with one of our names gets a line of its own."""
    packages, wrong, others = dict(own), dict[str, str](), dict[str, set[str]]()
    for name, package in announced:
        if own.get(name) != package:
            others.setdefault(name, set()).add(package)
    for name, values in others.items():
        if name in own:
            for package in sorted(values):
                line = f"{name} ({package})"
                packages[line] = package
                wrong[line] = f'the name "{name}" belongs to a backend of kernelmux: {package} needs another one'
        else:
            packages[name] = sorted(values)[0]
            if problem := _unusable(name, sorted(values)):
                wrong[name] = problem
    return EntryPointPackages(packages, wrong)


def _unusable(name: str, packages: list[str]) -> str | None:
    """Why nothing can be asked for by this name, or None."""
    where = " and ".join(packages)
    if name in RESERVED:
        return f'the name "{name}" {RESERVED[name]}: {where} needs another one'
    for separator, meaning in SEPARATORS.items():
        if separator in name:
            return f'"{separator}" in the name "{name}" {meaning}: {where} needs another one'
    if name != name.strip():
        return f'the name "{name}" begins or ends with a space: {where} needs another one'
    return f'the name "{name}" is announced by {where}: uninstall all but one' if len(packages) > 1 else None
