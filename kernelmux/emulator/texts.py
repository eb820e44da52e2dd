"""Numbers as a person reads them, in pictures, sentences and tables of a trace."""

from __future__ import annotations


def percent(share: float) -> str:
    """A share: 100%, 88%, 12.5%; small ones with a fraction."""
    text = f"{100 * share:.1f}".removesuffix(".0")
    return f"{text}%" if share < 0.2 else f"{share:.0%}"


def bytes_text(count: int) -> str:
    """Bytes as a person reads them: 512 B, 4.0 KiB, 1.5 MiB."""
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.1f} KiB" if count < 1 << 20 else f"{count / (1 << 20):.1f} MiB"


def counted(value: float, unit: str) -> str:
    """An average with its unit: "1 pass", "4 sectors"; unit in the plural."""
    singular = {"passes": "pass", "copies": "copy"}.get(unit, unit.removesuffix("s"))
    return f"{number(value)} {singular if number(value) == '1' else unit}"


def number(value: float) -> str:
    """An average: whole numbers without a fraction."""
    return f"{value:.0f}" if abs(value - round(value)) < 0.05 else f"{value:.1f}"
