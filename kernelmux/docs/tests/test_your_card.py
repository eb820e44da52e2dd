"""The page of cards says what the table of cards says."""

from __future__ import annotations

import re
from pathlib import Path

from kernelmux.registry.util import cards
from kernelmux.registry.util.cards import KIB, MIB, Card

PAGE = Path(__file__).parents[3] / "docs/your_card.md"
FORMATS = ("fp16", "bf16", "tf32", "e4m3", "e5m2", "i8")


def row(card: Card) -> str:
    capability = "{}.{}".format(*card.capability)
    formats = ", ".join(f for f in FORMATS if card.multiplies(f))
    sizes = f"{card.shared_per_block // KIB} KiB | {card.l2 // MIB} MiB | {card.bandwidth / 1e9:,.0f} GB/s"
    return f"| `{card.key}` | {card.title} | {capability} | {card.processors} | {sizes} | {formats} |"


def test_the_page_has_every_card_by_capability() -> None:
    shown = re.findall(r"^\| `.*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    listed = {row(card): card for card in cards.table().values()}
    assert set(shown[: len(listed)]) == set(listed)
    order = [listed[line].capability for line in shown[: len(listed)]]
    assert order == sorted(order)
