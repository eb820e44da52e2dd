"""The mutation score: which of the broken kernels in `mutants/` the suite catches, each by the check it belongs to."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from kernelmux.conformance import check as catalogue
from kernelmux.conformance import mutants
from kernelmux.conformance.execute import Outcome, execute
from kernelmux.conformance.options import Options
from kernelmux.conformance.plan import Item
from kernelmux.registry import backend as registered
from kernelmux.registry import catalog, dispatch


@dataclass(frozen=True)
class Mutant:
    """A variant of a family of mutants and the check that must catch it ("" for a sound one, which all must pass).

    device: the only one on which the defect can show, or "".
    """

    op: str
    backend: str
    variant: str
    check: str
    device: str = ""

    @property
    def name(self) -> str:
        return f"{self.backend.removeprefix('mutants_')}/{self.variant}"

    def item(self, check: str) -> Item:
        return Item(self.op, self.backend, self.variant, check)


def families() -> dict[str, str]:
    """Backend name -> package of every family, found by folder name."""
    found = [m.name for m in pkgutil.iter_modules(mutants.__path__) if m.ispkg]
    return {f"mutants_{name}": f"{mutants.__name__}.{name}" for name in found}


@contextmanager
def registration() -> Iterator[None]:
    """The mutants are a backend like any other while this lasts, as if a distribution had announced them."""
    listed = registered._packages
    every = {**listed(), **families()}
    registered._packages = lambda: every
    try:
        yield
    finally:
        registered._packages = listed
        for cached in (registered.backend, registered.unavailable, registered.variants):
            cached.cache_clear()
        dispatch._plans.clear()


def population(device: str = "") -> list[Mutant]:
    """All mutants, by operator; with a device, those that it can show."""
    found = [m for op in catalog.names() for name, package in families().items() for m in _of(op, name, package)]
    return [m for m in found if not device or m.device in ("", device)]


def _of(op: str, name: str, package: str) -> Iterator[Mutant]:
    if not registered.implements(name, op):
        return
    module = importlib.import_module(f"{package}.{op}")
    alone = {v: d for d in ("cpu", "cuda") for v in getattr(module, f"ONLY_{d.upper()}", ())}
    for variant in registered.variants(name, op):
        yield Mutant(op, name, variant, module.CAUGHT_BY.get(variant, ""), alone.get(variant, ""))


def examine(mutant: Mutant, options: Options) -> list[Outcome]:
    """What the check of a broken variant says, or what every check says of a sound one."""
    home = registered.backend(mutant.backend)
    names = [
        n for n in catalogue.names() if (c := catalogue.check(n)).about == "variant" and c.applies(home, options.device)
    ]
    return [execute(mutant.item(name), options) for name in ([mutant.check] if mutant.check else names)]


def survived(mutant: Mutant, outcomes: list[Outcome]) -> str:
    """Why the suite failed on this mutant, or ""."""
    if mutant.check:
        return "" if outcomes[0].status == "failed" else f"not caught by {mutant.check}: {outcomes[0].status}"
    return "\n".join(o.text for o in outcomes if o.status == "failed")


def command(options: Options, console: Console) -> int:
    """Print every mutant with what became of it, and the score; 1 unless all were caught."""
    table = Table("operator", "mutant", "caught by", "idea", box=None, header_style="bold")
    with registration():
        every = [m for m in population(options.device) if not options.ops or m.op in options.ops]
        results = {m: survived(m, examine(m, options)) for m in every}
        for mutant, problem in results.items():
            idea = registered.variants(mutant.backend, mutant.op)[mutant.variant].idea
            verdict = f"[red]{problem.splitlines()[0]}" if problem else mutant.check or "(sound: passes)"
            table.add_row(mutant.op, mutant.name, verdict, idea)
    console.print(table)
    broken = [m for m in results if m.check]
    caught = sum(not results[m] for m in broken)
    console.print(
        f"mutation score: {caught} of {len(broken)} broken kernels caught, {sum(map(bool, results.values()))} problems"
    )
    return 1 if any(results.values()) else 0
