"""docs/images/<op>_ladder_counts.svg: what each rung of a CUDA ladder asks of memory, counted on the emulator."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmux.docs import drawing
from kernelmux.emulator.tracing.collector import Trace
from kernelmux.emulator.tracing.drawing.svg import BLUE, PLAIN, YELLOW
from kernelmux.perf.emulated import emulate
from kernelmux.registry import backend as registered

IMAGES = Path(__file__).parent / "images"
CALLS = {  # small enough to take seconds, large enough to fill a tile of every rung
    "transpose": "x=128x128:fp32",
    "reduce_sum": "x=2x16384:fp32 axis=1",
    "softmax": "x=2x8192:fp32",
    "matmul": "a=128x128:bf16 b=128x128:bf16",
    "conv2d": "x=1x16x16x16:bf16 weight=64x16x3x3:bf16 padding=1",
}
SECONDS = 120.0  # that one launch may take
WIDTH, NAME, PANEL, ROW, TOP = 960, 170, 190, 30, 84  # pixels
STYLE = f"text{{font-size:12px}}.rail{{fill:{PLAIN.pale}}}.global{{fill:{BLUE.fill}}}.shared{{fill:{YELLOW.fill}}}"


@dataclass(frozen=True)
class Rung:
    """What one variant asked for, over all its launches: requests of warps, bytes of sectors and TMA copies, and passes
    over the banks of shared memory."""

    name: str
    requests: int
    read: int
    written: int
    passes: int


PANELS = (
    ("requests", "requests to global memory", "global"),
    ("read", "bytes read", "global"),
    ("written", "bytes written", "global"),
    ("passes", "passes over shared memory", "shared"),
)


def counted(op: str, shape: str, variants: Sequence[str]) -> list[Rung]:
    """The counts of a call with each of these variants of the CUDA backend."""
    return [_rung(variant, _traced(op, shape, f"cuda/{variant}")) for variant in variants]


def _traced(op: str, shape: str, backend: str) -> Trace:
    options = argparse.Namespace(op=op, shape=shape, block=0, warp=0, limit=SECONDS)
    return emulate.run(options, backend)[1]


def _rung(variant: str, trace: Trace) -> Rung:
    def total(what: str, space: str, *operations: str) -> int:
        return sum(launch.total(what, space, *operations) for launch in trace.launches)

    return Rung(
        variant,
        requests=total("requests", "global") + total("requests", "bulk"),
        read=total("moved", "global", "load", "copy") + total("moved", "bulk", "load"),
        written=total("moved", "global", "store", "atomic", "reduction") + total("moved", "bulk", "store"),
        passes=total("wavefronts", "shared"),
    )


def picture(op: str, shape: str, rungs: Sequence[Rung]) -> str:
    """The counts as SVG text: a line per rung, a panel per count."""
    height, title = TOP + ROW * len(rungs) + 14, f"{op} {shape}: what each rung asks of memory"
    parts = [
        '<text class="grey" x="16" y="47">counted on the emulator; bytes are those of 32-byte sectors</text>',
        *(part for i, rung in enumerate(rungs) for part in _line(i, rung, rungs)),
        *(f'<text class="grey" x="{_left(k)}" y="{TOP - 10}">{name}</text>' for k, (_, name, _) in enumerate(PANELS)),
    ]
    return drawing.picture(WIDTH, height, 16, title, STYLE, parts)


def _left(panel: int) -> int:
    return NAME + panel * (PANEL + 8)


def _line(number: int, rung: Rung, rungs: Sequence[Rung]) -> Iterator[str]:
    y = TOP + number * ROW
    yield f'<text x="16" y="{y + 16}">{rung.name}</text>'
    for k, (field, _, kind) in enumerate(PANELS):
        value, most = getattr(rung, field), max(getattr(other, field) for other in rungs) or 1
        length = (PANEL - 66) * value / most
        yield f'<rect class="rail" x="{_left(k)}" y="{y + 4}" width="{PANEL - 66}" height="16" rx="2"/>'
        yield f'<rect class="{kind}" x="{_left(k)}" y="{y + 4}" width="{length:.1f}" height="16" rx="2"/>'
        yield f'<text x="{_left(k) + PANEL - 60}" y="{y + 16}">{_short(value)}</text>'


def _short(value: int) -> str:
    """Three digits: 16,384 is 16.4 k."""
    return f"{value / 1e6:.3g} M" if value >= 1e6 else f"{value / 1e3:.3g} k" if value >= 1e3 else str(value)


def path_of(op: str) -> Path:
    return IMAGES / f"{op}_ladder_counts.svg"


def made() -> Iterator[tuple[Path, str]]:
    """Every picture with its text, one after the other: each takes seconds."""
    for op, shape in CALLS.items():
        yield path_of(op), picture(op, shape, counted(op, shape, list(registered.variants("cuda", op))))
