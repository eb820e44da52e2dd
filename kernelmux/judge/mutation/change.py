"""A change of the text of a kernel, and the kinds of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

KINDS = {
    "constant": "an integer one more or less, twice or half as large; another factor",
    "term": "an operand of a sum, a product or a condition left out",
    "order": "axes, strides, indices, arguments or operands exchanged",
    "mask": "a mask or a guard left out, or wider than it was",
    "comparison": "< as <=, and so on",
    "barrier": "a barrier, a fence or a wait left out",
    "accumulator": "a sum kept in a smaller format, or a conversion left out",
    "initial value": "an accumulator that begins elsewhere, an output that is not filled",
    "special values": "one branch of a choice alone, a maximum of two as one of them, NaN that does not spread",
    "fast path": "something else for one size, layout, dtype or value",
    "state": "a result, a scalar or a count kept between calls",
}
SHOWN = 110  # characters of a line in a report

Edit = tuple[int, int, str]  # from, to (in characters of a file), and what stands there then


@dataclass(frozen=True)
class TextChange:
    """A change of one file. file: its path below the folder of the backend; line: of the first edit, from 1 on.

    before, after: the line as it was and is. weight: how likely it is drawn, beside others of its kind.
    """

    kind: str
    file: str
    line: int
    before: str
    after: str
    edits: tuple[Edit, ...]
    weight: float = 1.0

    @classmethod
    def of(cls, kind: str, file: str, text: str, edits: Iterable[Edit], weight: float = 1.0) -> TextChange:
        """The change that these edits are; the first one says where it is."""
        every = tuple(edits)
        start, end, new = every[0]
        begin = text.rfind("\n", 0, start) + 1
        stop = text.find("\n", end)
        stop = len(text) if stop < 0 else stop
        after = text[begin:start] + new + text[end:stop]
        return cls(kind, file, text.count("\n", 0, start) + 1, _short(text[begin:stop]), _short(after), every, weight)

    def applied(self, text: str) -> str:
        """The text with this change."""
        for start, end, new in sorted(self.edits, reverse=True):
            text = text[:start] + new + text[end:]
        return text

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    def as_dict(self) -> dict[str, Any]:
        """As JSON, for the processes that run it."""
        return {**vars(self), "edits": [list(edit) for edit in self.edits]}


def from_dict(fields: dict[str, Any]) -> TextChange:
    """The change that `as_dict` took apart."""
    return TextChange(**{**fields, "edits": tuple((int(a), int(b), str(new)) for a, b, new in fields["edits"])})


def _short(code: str) -> str:
    code = " ".join(code.split())
    return code if len(code) <= SHOWN else f"{code[: SHOWN - 3]}..."


def integers(value: int) -> list[int]:
    """What an integer may be instead: one more or less, and of a power of two its neighbours."""
    found = [value + 1, value - 1]
    if value >= 4 and value & (value - 1) == 0:
        found += [value * 2, value // 2]
    return [one for one in found if one >= 0 or value < 0]
