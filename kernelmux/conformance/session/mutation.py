"""The mutation score: which of the broken kernels in `mutants/` the suite catches, each by the check it belongs to."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.machinery import ModuleSpec
from types import ModuleType

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernelmux.conformance import check as catalogue
from kernelmux.conformance import mutants
from kernelmux.conformance.judging.probe import MUTANTS
from kernelmux.conformance.mutants._mutant import FAMILIES, MutantVariant
from kernelmux.conformance.options import Options
from kernelmux.conformance.session import plan
from kernelmux.conformance.session.execute import Outcome, execute
from kernelmux.conformance.session.plan import Item
from kernelmux.registry import catalog
from kernelmux.registry.backend import Backend
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import temporary_backends

PACKAGE = f"{mutants.__name__}."  # of the packages of the backends, which lie in no folder of their own
COMPILES = "compile_only"  # the check whose mutants may be such that they do not compile


@dataclass(frozen=True)
class Mutant:
    """A variant of a family of mutants and the check that must catch it ("" for a sound one, which all must pass).

    device: the only one on which the defect can show, or "". case: the only one that shows it, beyond tier ci, or "".
    """

    op: str
    backend: str
    variant: str
    check: str
    device: str = ""
    case: str = ""

    @property
    def name(self) -> str:
        return f"{self.backend.removeprefix(MUTANTS)}/{self.variant}"

    def item(self, check: str) -> Item:
        return Item(self.op, self.backend, self.variant, check)

    def checks(self, device: str) -> list[str]:
        """The check of a broken variant, every check of a sound one."""
        if self.check:
            return [self.check]
        home = registered.backend(self.backend)
        every = ((name, catalogue.check(name)) for name in catalogue.names())
        return [name for name, check in every if check.about == "variant" and check.applies(home, device)]


@cache
def modules() -> dict[str, ModuleType]:
    """The backends of the families by the names of their modules: a package each, with a module per operator."""
    made: dict[str, ModuleType] = {}
    for (family, op), found in _known().items():
        package, name = f"{MUTANTS}{family}", f"{PACKAGE}{family}"
        if name not in made:
            home = made[name] = _module(name, is_package=True)
            home.BACKEND = Backend(  # type: ignore[attr-defined]
                package, "broken on purpose", priority=-1, unavailable=lambda device: None, emulates=True
            )
        module = made[f"{name}.{op}"] = _module(f"{name}.{op}", is_package=False)
        module.VARIANTS = {m.variant: m.implementation for m in found}  # type: ignore[attr-defined]
    return made


def _module(name: str, is_package: bool) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = mutants.__file__
    module.__spec__ = ModuleSpec(name, None, origin=mutants.__file__, is_package=is_package)
    if is_package:
        module.__path__ = []
        module.__spec__.submodule_search_locations = [*mutants.__path__]
    return module


@cache
def _known() -> dict[tuple[str, str], list[MutantVariant]]:
    """What the files in `mutants/` hold, by family and operator."""
    found: dict[tuple[str, str], list[MutantVariant]] = {}
    for file in sorted(m.name for m in pkgutil.iter_modules(mutants.__path__) if not m.name.startswith("_")):
        told = importlib.import_module(f"{mutants.__name__}.{file}").mutant
        for made in told.found:
            found.setdefault((made.family, told.op), []).append(made)
    return found


@contextmanager
def registration() -> Iterator[None]:
    """The mutants are a backend like any other while this lasts."""
    sys.modules.update(modules())
    with temporary_backends.announced({f"{MUTANTS}{name}": f"{PACKAGE}{name}" for name in FAMILIES}):
        yield


def population(device: str = "") -> list[Mutant]:
    """All mutants, by operator; with a device, those that it can show."""
    found = [m for op in catalog.names() for family in FAMILIES for m in _of(op, family)]
    return [m for m in found if not device or m.device in ("", device)]


def _of(op: str, family: str) -> Iterator[Mutant]:
    for made in _known().get((family, op), ()):
        yield Mutant(op, f"{MUTANTS}{family}", made.variant, made.caught_by, made.only, made.shown_by)


def chosen(options: Options) -> list[Mutant]:
    """The mutants of a run: of its operators, and of its checks (a sound one belongs to all of them)."""
    wanted = [m for m in population(options.device) if not options.ops or m.op in options.ops]
    return [m for m in wanted if not options.checks or not m.check or m.check in options.checks]


def items(options: Options) -> list[Item]:
    """What a run of the mutants consists of; `validation` must be in force."""
    made = [mutant.item(check) for mutant in chosen(options) for check in mutant.checks(options.device)]
    asked = [item for item in made if not options.checks or item.check in options.checks]
    return plan.matching((one for item in asked for one in plan.seeded(item, options)), options.keyword)


def executed(item: Item, options: Options) -> Outcome:
    """Run an item of a mutant, on the case that shows its defect where there is but one."""
    found = _of(item.op, item.backend.removeprefix(MUTANTS))
    case = next(m.case for m in found if m.variant == item.variant)
    return execute(item, replace(options, cases=(case,)) if case and not options.cases else options)


def survived(mutant: Mutant, outcomes: list[Outcome]) -> str:
    """Why the suite failed on this mutant, or "": a broken one must be caught with every seed."""
    if mutant.check:
        missed = next((o.status for o in outcomes if o.status != "failed"), "")
        uncompiled = any("CompileError" in o.text or "CompileFailure" in o.text for o in outcomes)
        if mutant.check != COMPILES and uncompiled:
            return "does not compile, so that nothing is known about its defect"
        return f"not caught by {mutant.check}: {missed}" if missed else ""
    return "\n".join(o.text for o in outcomes if o.status == "failed")


def line(outcome: Outcome) -> str:
    """What became of an item, for the log."""
    verdict = {"failed": "caught", "passed": "passed by"}.get(outcome.status, outcome.status)
    item = outcome.item
    return f"{item.op} {item.label.removeprefix(MUTANTS)}: {verdict} {item.check} ({outcome.seconds:.1f} s)"


def conclude(options: Options, outcomes: list[Outcome], console: Console) -> tuple[int, int, int]:
    """Print every mutant of a run with what became of it; in a quiet run those alone that are a problem.

    Returns how many broken ones there are, how many of them were caught, and how many problems, false alarms among them.
    """
    table = Table("operator", "mutant", "caught by", "idea", box=None, header_style="bold")
    results = {m: survived(m, told) for m in chosen(options) if (told := _outcomes_of(m, outcomes))}
    for mutant, problem in results.items():
        idea = registered.variants(mutant.backend, mutant.op)[mutant.variant].idea
        verdict = Text(problem.splitlines()[0], "red") if problem else Text(mutant.check or "(sound: passes)")
        if problem or not options.quiet:
            table.add_row(mutant.op, mutant.name, verdict, Text(idea))
    if table.rows:
        console.print(table)
    broken = [m for m in results if m.check]
    return len(broken), sum(not results[m] for m in broken), sum(map(bool, results.values()))


def _outcomes_of(mutant: Mutant, outcomes: list[Outcome]) -> list[Outcome]:
    key = (mutant.op, mutant.backend, mutant.variant)
    return [o for o in outcomes if (o.item.op, o.item.backend, o.item.variant) == key]
