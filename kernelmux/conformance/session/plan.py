"""What a run consists of: an item per operator, backend/variant and check, or per operator and check of its spec."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from kernelmux.conformance import check as catalogue
from kernelmux.conformance.check import SPEC
from kernelmux.conformance.options import Options
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.errors import ArgumentError, BackendUnavailable, SpecError, unknown

# Pseudo checks: the backend cannot work here; its module for the operator cannot be imported, or does not fit the spec.
UNAVAILABLE, BROKEN = "unavailable", "import"


@dataclass(frozen=True)
class Item:
    """One item. problem: why a backend cannot run at all (check is then UNAVAILABLE or BROKEN).

    seed: of its inputs where the run has several, else None: then it is that of the options.
    """

    op: str
    backend: str
    variant: str
    check: str
    problem: str = ""
    seed: int | None = None

    @property
    def label(self) -> str:
        return f"{self.backend}/{self.variant}" if self.variant else self.backend

    @property
    def name(self) -> str:
        """The item whatever its seed."""
        return f"{self.op}-{self.label}-{self.check}"

    @property
    def id(self) -> str:
        return self.name if self.seed is None else f"{self.name}-seed{self.seed}"


def items(options: Options) -> list[Item]:
    """The items of a run in a fixed order: operator, backend, variant in ladder order, check, seed."""
    check_names(options)
    every_op = (
        catalog.taking(options.dtypes) if options.dtypes else catalog.names()
    )  # what cannot be used is an item too
    found = [item for op in options.ops or every_op for item in _of_op(op, options)]
    every = (one for item in found for one in seeded(item, options))
    return matching((one for one in every if not options.only or one.id in options.only), options.keyword)


def matching(items: Iterable[Item], keyword: str) -> list[Item]:
    """The items that an expression of pytest's -k fits ("softmax and not layout"), all for ""; ArgumentError for a bad one.

    A name in it stands for a part of an id, in small or capital letters. What cannot be imported stays, as in pytest.
    """
    if not keyword.strip():
        return list(items)
    from _pytest.mark.expression import Expression  # others plan without pytest

    try:
        compiled = Expression.compile(keyword)
    except Exception as error:  # its class depends on the version of pytest
        told = getattr(error, "msg", None) or str(error) or type(error).__name__
        raise ArgumentError(f"-k {keyword!r}: {told} (expected names, and, or, not: softmax and not layout)") from None

    def fits(item: Item) -> bool:
        def part(name: str, /, **more: object) -> bool:
            if more:
                raise ArgumentError(f"-k {keyword!r}: expected names, and, or, not, got arguments of {name}")
            return name.lower() in item.id.lower()

        return compiled.evaluate(part)

    return [item for item in items if item.check == BROKEN or fits(item)]


def seeded(item: Item, options: Options) -> list[Item]:
    """The item once for each of several seeds."""
    return [item] if item.problem or not options.seeds else [replace(item, seed=seed) for seed in options.seeds]


def check_names(options: Options) -> None:
    """Raise UnknownName for an operator, backend, variant or check that is not registered."""
    for op in options.ops:
        catalog.spec(op)
    for name in options.checks:
        catalogue.check(name)
    for label in options.backends:
        head, variant = (label, None) if label == SPEC else registered.split(label)
        ladders = {op: known(head, op) for op in options.ops or catalog.usable()} if variant else {}
        if variant and not any(variant in ladder for ladder in ladders.values()):
            every = sorted({v for ladder in ladders.values() for v in ladder})
            raise unknown(f"variant of {head}", variant, every)


def known(backend: str, op: str) -> tuple[str, ...]:
    """The variants of an operator, () for a backend that has none or cannot tell."""
    try:
        return tuple(registered.variants(backend, op))
    except Exception:
        return ()


def wanted(options: Options, backend: str, variant: str = "") -> bool:
    names = options.backends
    return not names or backend in names or (f"{backend}/{variant}" in names if variant else _heads(names, backend))


def _heads(names: tuple[str, ...], backend: str) -> bool:
    return any(name.partition("/")[0] == backend for name in names)


def _of_op(op: str, options: Options) -> Iterator[Item]:
    if problem := catalog.problem(op):
        yield Item(op, SPEC, "", BROKEN, problem)
        return
    chosen = [n for n in catalogue.names() if not options.checks or n in options.checks]
    if wanted(options, SPEC):
        yield from (Item(op, SPEC, "", n) for n in chosen if catalogue.check(n).about == SPEC)
    for backend in registered.backends():
        if wanted(options, backend):
            yield from _of_backend(op, backend, chosen, options)


def _of_backend(op: str, backend: str, chosen: list[str], options: Options) -> Iterator[Item]:
    try:
        if not options.elsewhere and (reason := registered.unavailable(backend, options.where)):
            yield Item(op, backend, "", UNAVAILABLE, reason)
            return
        ladder = registered.variants(backend, op)
    except BackendUnavailable as error:
        yield Item(op, backend, "", UNAVAILABLE, str(error))
        return
    except SpecError as error:
        yield Item(op, backend, "", BROKEN, str(error))
        return
    except Exception:
        yield Item(op, backend, "", BROKEN, traceback.format_exc(limit=-3).rstrip())
        return
    home = registered.backend(backend)
    checks = [c for n in chosen if (c := catalogue.check(n)).about != SPEC and c.applies(home, options.device)]
    names = [n for n in chosen if catalogue.check(n) in checks]
    yield from (Item(op, backend, v, n) for v in ladder if wanted(options, backend, v) for n in names)
    refused = {package: why for (b, o, package), why in registered.refused.items() if (b, o) == (backend, op)}
    yield from (
        Item(op, backend, package, BROKEN, why) for package, why in refused.items() if wanted(options, backend, package)
    )
