"""What came out, for a reader who is new: a row per operator, a column per backend, one mark each.

A run on several kinds of cards has a column per backend and card.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from kernelmux.conformance.check import SPEC
from kernelmux.conformance.report import matrix
from kernelmux.conformance.report.matrix import MatrixRow
from kernelmux.conformance.session.execute import BY_GPU, NOT, Outcome

PASSED, FAILED, PART, NOTHING = "passed", "failed", "part", "skipped"
MEANS = {
    PASSED: "passed",
    FAILED: "failed",
    PART: "passed, but for known failures, or for variants that cannot run here",
    NOTHING: "not tested",
}
MARKS = {PASSED: "✓", FAILED: "✗", PART: "◐", NOTHING: "-"}
ASCII = {PASSED: "+", FAILED: "X", PART: "~", NOTHING: "-"}
STYLES = {PASSED: "green", FAILED: "bold red", PART: "yellow", NOTHING: "dim"}
CORNER, LINE = ("┌ ", "│ "), (". ", "| ")  # of a header, and the same in ASCII
ROWS = 12  # of a block; shorter ones are not worth a header
GAP = 3  # columns of a terminal between two blocks


@dataclass(frozen=True)
class Board:
    """backends: the columns, the specs last. marks: operator -> backend -> mark; none where there is no kernel."""

    backends: list[str]
    marks: dict[str, dict[str, str]]

    @property
    def occurring(self) -> list[str]:
        """The kinds of marks that occur, and always passed and failed."""
        every = {mark for row in self.marks.values() for mark in row.values()} | {PASSED, FAILED}
        return [mark for mark in MEANS if mark in every]


def of(outcomes: Iterable[Outcome]) -> Board:
    """The marks of outcomes: a backend passes an operator if nothing failed in any of its variants that were asked."""
    rows: dict[str, dict[str, list[str]]] = {}
    for row in matrix.rows(outcomes):
        marks_of = rows.setdefault(row.op, {}).setdefault(row.backend, [])
        marks_of += [] if _untouched(row) else [_mark(row)]
    marks = {op: {name: _together(found) for name, found in own.items()} for op, own in rows.items()}
    names = {name for row in marks.values() for name in row}
    return Board([*sorted(names - {SPEC}), *sorted(names & {SPEC})], marks)


def _mark(row: MatrixRow) -> str:
    """The mark of one variant."""
    found = {row.problem.status} if row.problem else {o.status for o in row.cells.values()}
    if "failed" in found:
        return FAILED
    if "expected" in found:
        return PART
    return PASSED if "passed" in found else NOTHING


def _untouched(row: MatrixRow) -> bool:
    """Whether nothing was asked of a variant, for lack of time or because a GPU has passed it."""
    return not row.problem and all(o.asked in (NOT, BY_GPU) for o in row.cells.values())


def _together(marks: list[str]) -> str:
    """The mark of a backend whose variants have these."""
    if not marks:
        return NOTHING
    if FAILED in marks:
        return FAILED
    return marks[0] if len(set(marks)) == 1 else PART


def show(console: Console, board: Board) -> None:
    """Print the table, in as many blocks beside each other as the console is wide, and what its marks mean."""
    plain = not _has(console, "".join((*MARKS.values(), *CORNER)))
    blocks = [_block(board, ops, plain) for ops in _fitting(board, console.width)]
    widths = [max(len(line) for line in block) + GAP for block in blocks]
    for number in range(max(map(len, blocks), default=0)):
        line = Text()
        for block, width in zip(blocks, widths, strict=True):
            cell = block[number] if number < len(block) else Text()
            line.append_text(cell).append(" " * (width - len(cell)))
        line.rstrip()
        console.print(line, soft_wrap=True)
    _legend(console, board, ASCII if plain else MARKS)


def _has(console: Console, text: str) -> bool:
    """Whether the encoding of a console has these characters."""
    try:
        text.encode(console.encoding)
    except (UnicodeError, LookupError):
        return False
    return True


def _fitting(board: Board, width: int) -> list[list[str]]:
    """The operators of each block: as many blocks as fit, of some rows at least."""
    ops = list(board.marks)
    for count in range(math.ceil(len(ops) / ROWS), 1, -1):
        parts = in_parts(ops, math.ceil(len(ops) / count))
        if sum(_width(board, part) + GAP for part in parts) - GAP <= width:
            return parts
    return [ops]


def in_parts(ops: Sequence[str], rows: int) -> list[list[str]]:
    """The operators, so many at a time."""
    return [list(ops[start : start + rows]) for start in range(0, len(ops), rows)]


def _width(board: Board, ops: Sequence[str]) -> int:
    """Of a block: its longest line, of the header or with a name."""
    heads = [2 * place + 2 + len(name) for place, name in enumerate(board.backends)]
    return max(*heads, *(2 * len(board.backends) + len(op) for op in ops), 0)


def _block(board: Board, ops: Sequence[str], plain: bool) -> list[Text]:
    """A header as a staircase, one line per backend, and a line per operator: its marks and its name."""
    first, later = LINE if plain else CORNER
    lines = [Text(later * place + first + name, "bold") for place, name in enumerate(board.backends)]
    return [*lines, *(_line(board, op, ASCII if plain else MARKS) for op in ops)]


def _line(board: Board, op: str, marks: dict[str, str]) -> Text:
    line = Text()
    for name in board.backends:
        mark = board.marks[op].get(name)
        line.append(f"{marks[mark]} " if mark else "  ", style=STYLES[mark] if mark else "")
    return line.append(op, style=STYLES[FAILED] if FAILED in board.marks[op].values() else "")


def _legend(console: Console, board: Board, marks: dict[str, str]) -> None:
    """What the marks mean, in one line if there is room."""
    parts = [Text(f"{marks[m]} ", STYLES[m]).append(MEANS[m], "dim") for m in board.occurring]
    room = sum(map(len, parts)) + GAP * (len(parts) - 1) <= console.width
    console.print(Text(" " * GAP if room else "\n").join(parts), highlight=False)


def markdown(board: Board) -> str:
    """The table in Markdown, with what its marks mean."""
    lines = [f"| operator | {' | '.join(board.backends)} |", "|---|" + ":-:|" * len(board.backends)]
    for op, row in board.marks.items():
        lines.append(f"| {op} | {' | '.join(MARKS[row[n]] if n in row else ' ' for n in board.backends)} |")
    return "\n".join([*lines, "", "; ".join(f"{MARKS[mark]} {MEANS[mark]}" for mark in board.occurring)])
