"""The table of README.md between <!-- cards --> and <!-- /cards -->: families of operators on each card."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from kernelmux.conformance.fits import calls, record
from kernelmux.conformance.fits.judge import COMPILE, FAILS, REFUSED, ROOM
from kernelmux.conformance.fits.record import AUTO, OperatorFits
from kernelmux.conformance.verified import ledger
from kernelmux.docs.families import by_family
from kernelmux.registry import elsewhere
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.util import cards, text_tables
from kernelmux.registry.util.files import between

BEGIN, END = "<!-- cards -->", "<!-- /cards -->"
VERIFIED, FIT, NOT_ASKED = "verified", "fits", "not asked"
BRANDS = ("NVIDIA ", "GeForce ", " Blackwell", " 80GB", " 96GB", " SXM")  # left out of the name of a card
WRONG = {COMPILE: "do not compile", ROOM: "do not fit", FAILS: "fail"}


def filled(text: str) -> str:
    """A page with the table, if it has the markers."""
    return between(text, BEGIN, END, matrix()) if BEGIN in text else text


def matrix() -> str:
    """Families and cards in Markdown, and what the words mean."""
    found = list(record.entries())
    families = by_family(elsewhere.own())
    heads = ["", *families]
    rows = [[_names(card), *(_cell(found, ops, card) for ops in families.values())] for card in calls.CARDS]
    asked = sum(e.count() for e in found)
    wrong = ", ".join(f"{sum(e.count(outcome) for e in found):,} {text}" for outcome, text in WRONG.items())
    legend = (
        f"{VERIFIED}: every variant of CUDA and Triton passed the whole suite on such a GPU, as it stands. {FIT}: what a"
        " call would launch was compiled for the card and compared with its limits, and nothing of it ran there. Behind"
        f' "not": what the card has no instructions for; backend="auto" takes torch if that can. {asked:,} calls were'
        f" asked: {wrong}. `kernelmux support --cards` has it by operator."
    )
    return f"{text_tables.markdown(heads, rows)}\n\n{legend}"


def _names(key: str) -> str:
    """The cards of a capability: RTX 4090, L4, L40S."""
    capability = cards.table()[key].capability
    alike = [card.title for card in cards.table().values() if card.capability == capability and card.key != key]
    return ", ".join(_short(title) for title in (cards.table()[key].title, *alike))


def _short(title: str) -> str:
    for word in BRANDS:
        title = title.replace(word, "")
    return title


def _cell(found: Sequence[OperatorFits], ops: Sequence[str], card: str) -> str:
    """What is known of a family on the cards that are like this one."""
    own = [e for e in found if e.card == card and e.operator in ops]
    if {e.operator for e in own} < {*ops}:
        return NOT_ASKED
    if wrong := [f"{n:,} {text}" for outcome, text in WRONG.items() if (n := sum(e.count(outcome) for e in own))]:
        return ", ".join(wrong)
    stale = ", stale" if any(e.stale for e in own) else ""
    refused = "".join(f"; not {text}" for text in _refused(own))
    sure = _verified(cards.table()[card].sm)
    known = sum(op in sure for op in ops)
    if known == len(ops):
        return VERIFIED + stale + refused
    return (f"{known} of {len(ops)} {VERIFIED}, others fit" if known else FIT) + stale + refused


def _refused(own: Sequence[OperatorFits]) -> Iterator[str]:
    """The operators that every backend with kernels refuses in some dtypes: "`fp8_matmul` e4m3/e5m2"."""
    for op in dict.fromkeys(e.operator for e in own):
        kernels = [e for e in own if e.operator == op and e.backend != AUTO]
        whole = [{d for d, n in e.calls.items() if n[REFUSED] == sum(n.values())} for e in kernels]
        both = set.intersection(*whole) if whole else set()
        if both:
            yield f"`{op}` {'/'.join(d for d in kernels[0].calls if d in both)}"


@cache
def _verified(sm: str) -> frozenset[str]:
    """The operators whose every variant with kernels has passed on a GPU of this capability, as it stands."""
    books = [book for book in ledger.books() if book.get("capability") == sm]
    return frozenset(op for op in elsewhere.own() if books and all(_passed(books, op, *v) for v in _variants(op)))


def _variants(op: str) -> Iterator[tuple[str, str]]:
    names = [n for n in registered.backends() if registered.loads(n) and not registered.composite(n)]
    yield from ((name, variant) for name in names for variant in registered.variants(name, op))


def _passed(books: Sequence[dict[str, Any]], op: str, backend: str, variant: str) -> bool:
    entries = (book["entries"].get(f"{op}/{backend}/{variant}") for book in books)
    return any(entry and ledger.standing(entry, op, backend, variant) == ledger.VERIFIED for entry in entries)
