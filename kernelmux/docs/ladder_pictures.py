"""docs/images/<op>_ladder_counts.svg: what each rung of a CUDA ladder asks of memory, counted on the emulator."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmux.docs import HOME
from kernelmux.emulator.traces import Trace
from kernelmux.perf.emulated import emulate
from kernelmux.perf.pictures import figures
from kernelmux.perf.pictures.themes import GREY
from kernelmux.registry.backend import lookup as registered

IMAGES = HOME / "images"
CALLS = {  # small enough to take seconds, large enough to fill a tile of every rung
    "transpose": "x=128x128:fp32",
    "reduce_sum": "x=2x16384:fp32 axis=1",
    "softmax": "x=2x8192:fp32",
    "matmul": "a=128x128:bf16 b=128x128:bf16",
    "conv2d": "x=1x16x16x16:bf16 weight=64x16x3x3:bf16 padding=1",
}
ELSEWHERE = {"matmul": ("bf16x6",), "conv2d": ("patches", "pointwise", "bf16x6")}  # rungs that do not take that call
SECONDS = 120.0  # that one launch may take
BLUE, YELLOW, RAIL = (
    "#3b82d6",
    "#f2b705",
    "#f1f4f7",
)  # global and shared memory as in pictures of a trace; below the bars
WIDTH, HEAD, ROW, THICK = 10.0, 0.85, 0.3, 0.55  # inches: the whole, above and below the rows, a row; a bar, in rows


@dataclass(frozen=True)
class RungTraffic:
    """What one variant asked for, over all its launches: requests of warps, bytes of sectors and TMA copies, and passes
    over the banks of shared memory."""

    name: str
    requests: int
    read: int
    written: int
    passes: int


PANELS = (
    ("requests", "requests to global memory", BLUE),
    ("read", "bytes read", BLUE),
    ("written", "bytes written", BLUE),
    ("passes", "passes over shared memory", YELLOW),
)


def rungs(op: str) -> list[str]:
    """The variants that take the call."""
    return [variant for variant in registered.variants("cuda", op) if variant not in ELSEWHERE.get(op, ())]


def counted(op: str, shape: str, variants: Sequence[str]) -> list[RungTraffic]:
    """The counts of a call with each of these variants of the CUDA backend."""
    return [_rung(variant, _traced(op, shape, f"cuda/{variant}")) for variant in variants]


def _traced(op: str, shape: str, backend: str) -> Trace:
    options = argparse.Namespace(op=op, shape=shape, block=0, warp=0, limit=SECONDS)
    return emulate.run(options, backend)[1]


def _rung(variant: str, trace: Trace) -> RungTraffic:
    def total(what: str, space: str, *operations: str) -> int:
        return sum(launch.total(what, space, *operations) for launch in trace.launches)

    return RungTraffic(
        variant,
        requests=total("requests", "global") + total("requests", "bulk"),
        read=total("moved", "global", "load", "copy") + total("moved", "bulk", "load"),
        written=total("moved", "global", "store", "atomic", "reduction") + total("moved", "bulk", "store"),
        passes=total("wavefronts", "shared"),
    )


def picture(op: str, shape: str, rungs: Sequence[RungTraffic]) -> str:
    """The counts as SVG text: a line per rung, a panel per count."""
    names = [rung.name for rung in rungs]
    with figures.blank(WIDTH, HEAD + ROW * len(rungs)) as figure:
        title = f"{op} {shape}: what each rung asks of memory"
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11)
        for axes, (field, shown, colour) in zip(figure.subplots(1, len(PANELS), sharey=True), PANELS, strict=True):
            counts = [getattr(rung, field) for rung in rungs]
            most = max(counts) or 1
            rail = axes.barh(names, most, THICK, color=RAIL)
            axes.barh(names, counts, THICK, color=colour)
            axes.bar_label(rail, map(short, counts), padding=4)
            axes.set_title(shown, loc="left", fontsize=9, color=GREY)
            axes.set(xlim=(0, 1.35 * most), ylim=(len(rungs) - 0.5, -0.5), xticks=[])
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
        told = "counted on the emulator; bytes are those of 32-byte sectors"
        figure.supxlabel(told, x=0.01, ha="left", fontsize=9, color=GREY)
        return figures.svg(figure)


def short(value: int) -> str:
    """Three digits: 16,384 is 16.4 k."""
    return f"{value / 1e6:.3g} M" if value >= 1e6 else f"{value / 1e3:.3g} k" if value >= 1e3 else str(value)


def path_of(op: str) -> Path:
    return IMAGES / f"{op}_ladder_counts.svg"


def all_pictures() -> Iterator[tuple[Path, str]]:
    """Every picture with its text, one after the other: each takes seconds."""
    for op, shape in CALLS.items():
        yield path_of(op), picture(op, shape, counted(op, shape, rungs(op)))
