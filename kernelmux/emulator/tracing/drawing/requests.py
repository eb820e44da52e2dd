"""One request of a warp: from its lanes to sectors of global memory, or to the banks of shared memory."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from kernelmux.emulator.texts import bytes_text, counted, number, percent
from kernelmux.emulator.tracing import warp_requests
from kernelmux.emulator.tracing.drawing.svg import TINTS, Canvas, Tint
from kernelmux.emulator.tracing.drawing.themes import FAINT, GREY, INK, RULE
from kernelmux.emulator.tracing.traffic import Traffic
from kernelmux.emulator.tracing.warp_requests import BANKS, NO_LANE, SECTOR, WARP, WORD

CELL = 22.0  # width of a lane, of a sector and of a bank
WIDTH = WARP * CELL
HEAD, LANES, GAP, SECTORS, FOOT = 20, 13, 44, 14, 14  # heights of the parts of a picture of sectors
MANY = 4  # passes over the banks from which on their rows are thin
THICK, THIN = 13.0, 5.0


def height(traffic: Traffic) -> float:
    """What `draw` needs."""
    if traffic.space == "bulk":
        return HEAD
    if traffic.space == "global":
        return HEAD + LANES + GAP + SECTORS + FOOT
    return HEAD + LANES + 2 + len(_passes(traffic)) * _row(len(_passes(traffic))) + 8


def draw(canvas: Canvas, x: float, y: float, traffic: Traffic) -> None:
    """The example of a kind of access, under a line that says what it costs on average."""
    tint = TINTS[traffic.verdict]
    canvas.part()
    _title(canvas, x, y, traffic, tint)
    if traffic.example is not None and traffic.space != "bulk":
        canvas.part()
        (_sectors if traffic.space == "global" else _banks)(canvas, x, y + HEAD, traffic, tint)
    canvas.part()


def _title(canvas: Canvas, x: float, y: float, traffic: Traffic, tint: Tint) -> None:
    canvas.rect(x, y + 3, 9, 9, tint.fill, radius=2)
    place = "shared memory" if traffic.space == "shared" else traffic.argument
    name = f"{'TMA ' if traffic.space == 'bulk' else ''}{traffic.operation} {place}"
    canvas.text(x + 15, y + 12, name, 12, INK, bold=True)
    if traffic.space != "bulk" and not traffic.drawn_requests:
        canvas.text(x + 24 + 7.4 * len(name), y + 12, "by another warp", 10.5, FAINT)
    words = _copies(traffic) if traffic.space == "bulk" else _cost(traffic)
    canvas.text(x + WIDTH, y + 12, words, 11.5, tint.text, "end")


def _copies(traffic: Traffic) -> str:
    return f"{counted(traffic.requests, 'copies')} of {bytes_text(traffic.size)}"


def _cost(traffic: Traffic) -> str:
    """What a request costs on average, and the drawn one if it is another number."""
    unit = "sectors" if traffic.space == "global" else "passes"
    words = f"{counted(traffic.per_request, unit)} per request"
    words += f", {number(traffic.least_per_request)} would do" if traffic.cost > traffic.least else ""
    if (mine := _drawn(traffic)) is not None and number(mine) != number(traffic.per_request):
        words += f" (drawn: {mine})"
    if traffic.verdict == "cached":
        words += f"   ·   {percent(traffic.reuse)} of them touched before by the block"
    elif traffic.space == "global":
        words += f"   ·   {percent(traffic.efficiency)} of the bytes moved are used"
    else:
        words += (
            f"   ·   {traffic.conflicts:,} bank conflicts in all" if traffic.conflicts else "   ·   no bank conflict"
        )
    return words


def _drawn(traffic: Traffic) -> int | None:
    """Sectors or passes of the example."""
    if traffic.example is None:
        return None
    if traffic.space == "shared":
        return len(_passes(traffic))
    count = warp_requests.atomic_sectors if traffic.operation in ("atomic", "reduction") else warp_requests.sectors
    return int(count(traffic.example[None])[0])


def _lanes(canvas: Canvas, x: float, y: float, active: np.ndarray, tint: Tint) -> None:
    for lane in range(WARP):
        canvas.rect(x + lane * CELL + 1, y, CELL - 2, LANES, tint.pale if active[lane] else "#f5f6f7", radius=2)
        canvas.text(x + (lane + 0.5) * CELL, y + 9.6, str(lane), 8, GREY if active[lane] else FAINT, "middle")


# --- global memory --------------------------------------------------------------------------------------------


def _sectors(canvas: Canvas, x: float, y: float, traffic: Traffic, tint: Tint) -> None:
    addresses = traffic.example
    if addresses is None:
        return
    active = addresses != NO_LANE
    _lanes(canvas, x, y, active, tint)
    touched = np.unique(addresses[active] // SECTOR)
    column = {int(sector): i for i, sector in enumerate(touched)}
    top = y + LANES + GAP
    left = x + (WARP - len(touched)) * CELL / 2
    for i in range(len(touched)):
        canvas.rect(left + i * CELL + 1, top, CELL - 2, SECTORS, tint.pale, tint.fill, 1.5, thick=0.7)
    _labels(canvas, left, top + SECTORS + 10, touched * SECTOR - _base(traffic, touched))
    for lane in np.flatnonzero(active):
        at = int(addresses[lane])
        word = left + column[at // SECTOR] * CELL + 1.5 + (at % SECTOR) * (CELL - 3) / SECTOR
        size = traffic.size * (CELL - 3) / SECTOR
        canvas.rect(word + 0.2, top + 1, size - 0.4, SECTORS - 2, tint.fill, title=_tip(traffic, int(lane), at))
        canvas.curve(x + (lane + 0.5) * CELL, y + LANES + 1, word + size / 2, top - 1, tint.fill, 0.75)


def _base(traffic: Traffic, touched: np.ndarray) -> int:
    """Offsets count from the start of the argument where it is known, else from the first sector."""
    return traffic.base if traffic.base is not None else int(touched[0]) * SECTOR


def _tip(traffic: Traffic, lane: int, address: int) -> str:
    offset = f" byte {address - traffic.base:,} of {traffic.argument}" if traffic.base is not None else ""
    return f"thread {lane}: {traffic.operation},{offset} {traffic.size} bytes"


def _labels(canvas: Canvas, left: float, y: float, offsets: np.ndarray) -> None:
    """Byte offsets of the sectors: all, or as many as there is room for."""
    widest = max(len(f"{offset:,}") for offset in offsets.tolist()) * 4.6 + 5
    every = max(1, int(np.ceil(widest / CELL)))
    for i, offset in enumerate(offsets.tolist()):
        if i % every == 0:
            canvas.text(left + (i + 0.5) * CELL, y, f"{offset:,}", 7.5, FAINT, "middle")


# --- shared memory --------------------------------------------------------------------------------------------


def _passes(traffic: Traffic) -> list[dict[int, list[int]]]:
    """The passes of the example: bank -> the lanes that it serves. A bank delivers its words one after another."""
    if traffic.example is None:
        return []
    passes: list[dict[int, list[int]]] = []
    for phase in warp_requests.parts(traffic.example, traffic.size, traffic.operation):
        words: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for lane in phase:
            for i in range(max(1, traffic.size // WORD) if traffic.example[lane] != NO_LANE else 0):
                word = int(traffic.example[lane]) // WORD + i
                words[word % BANKS][(word, int(lane))[traffic.operation == "atomic"]].append(int(lane))
        depth = max((len(served) for served in words.values()), default=0)
        turns = [
            {bank: list(served.values())[i] for bank, served in words.items() if i < len(served)} for i in range(depth)
        ]
        passes += turns
    return passes


def _row(passes: int) -> float:
    return THICK if passes <= MANY else THIN


def _banks(canvas: Canvas, x: float, y: float, traffic: Traffic, tint: Tint) -> None:
    for bank in range(BANKS):
        canvas.text(x + (bank + 0.5) * CELL, y + 10, str(bank), 8, FAINT, "middle")
    canvas.text(x - 6, y + 10, "bank", 8.5, FAINT, "end")
    passes = _passes(traffic)
    row, top = _row(len(passes)), y + LANES + 2
    canvas.rect(x, top, WIDTH, row * len(passes), "#fafbfc", RULE, thick=0.6)
    for i, served in enumerate(passes):
        if row == THICK:
            canvas.text(x - 6, top + i * row + 9.5, f"pass {i + 1}", 8.5, FAINT, "end")
        for bank, lanes in served.items():
            _served(canvas, x + bank * CELL, top + i * row, row, lanes, tint)
    if row == THIN:
        canvas.text(x - 6, top + 7, "pass 1", 8.5, FAINT, "end")
        canvas.text(x - 6, top + row * len(passes), f"pass {len(passes)}", 8.5, FAINT, "end")


def _served(canvas: Canvas, x: float, y: float, row: float, lanes: list[int], tint: Tint) -> None:
    words = f"thread {lanes[0]}" if len(lanes) == 1 else f"{len(lanes)} threads, one word: {lanes[0]} to {lanes[-1]}"
    canvas.rect(x + 0.8, y + 0.5, CELL - 1.6, row - 1, tint.fill, radius=1.2, title=words)
    if row == THICK:
        canvas.text(
            x + CELL / 2, y + 9.6, str(lanes[0]) if len(lanes) == 1 else f"×{len(lanes)}", 8, "#ffffff", "middle"
        )
