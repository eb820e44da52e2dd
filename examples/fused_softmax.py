"""Softmax in one kernel, in torch's, and by five calls of torch: bytes that each has to move, and times.

    python examples/fused_softmax.py                                  # 32768x16384 bf16 and fp32 on the GPU
    python examples/fused_softmax.py --shape 4096x1024 --out times.json

Every result is compared with float64 before it is timed. Times are medians of device time with a cold L2 cache, taken in
rounds in which every contestant has its turn; without a GPU they are wall times of the CPU, and say nothing of kernels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import kernelmux as kx
from kernelmux.perf.rows import machine
from kernelmux.perf.timing import clock
from kernelmux.registry import dtypes
from kernelmux.registry.cli import terminal
from kernelmux.registry.errors import ArgumentError, KernelmuxError

SHAPES, DTYPES, ROUNDS = ["32768x16384", "4096x1024"], ["bf16", "fp32"], 30
CHECKED_ROWS = 64


def five_calls(x: torch.Tensor) -> torch.Tensor:
    """Softmax of rows as the formula reads; each call reads its inputs from memory and writes its result there."""
    largest = x.amax(1, keepdim=True)  # reads MN, writes M
    z = x - largest  # reads MN + M, writes MN
    e = z.exp()  # reads MN, writes MN
    total = e.sum(1, keepdim=True)  # reads MN, writes M
    return e / total  # reads MN + M, writes MN


@dataclass
class Contestant:
    """A way to the result. moved: elements that it has to read and write, in units of the size of x. us: its times."""

    name: str
    moved: float
    call: Callable[[torch.Tensor], torch.Tensor] = field(repr=False)
    us: list[float] = field(default_factory=list)


def contestants(columns: int, device: str) -> list[Contestant]:
    """Everything that is timed; kernels on a GPU alone."""
    found = [
        Contestant("five torch calls", 8 + 4 / columns, five_calls),
        Contestant("torch.softmax", 2, lambda x: torch.softmax(x, 1)),
        Contestant("copy", 2, torch.clone),
    ]
    if device == "cuda":
        for name in ("triton", "cuda"):
            found.append(Contestant(name, 2, lambda x, name=name: kx.softmax(x, backend=name)))  # type: ignore[misc]
    return found


def check(found: list[Contestant], x: torch.Tensor) -> None:
    """Raise unless the first rows of every result are those of float64, but for roundings to the dtype."""
    wanted = torch.softmax(x[:CHECKED_ROWS].double(), 1)
    allowed = 16 * dtypes.UNIT[x.dtype]  # five calls round four times, and the exponential amplifies the first
    for one in found:
        got = one.call(x)[:CHECKED_ROWS].double()
        off = ((got - wanted).abs() / wanted).max().item()
        if one.name != "copy" and not off <= allowed:
            raise KernelmuxError(f"{one.name}: off by {off:.2g} of a weight, expected {allowed:.2g} at most")


def measure(shape: tuple[int, int], dtype: torch.dtype, rounds: int, device: str) -> list[Contestant]:
    """The contestants with their times."""
    x = torch.randn(shape, dtype=dtype, device=device)
    found = contestants(shape[1], device)
    check(found, x)
    watch: clock.Stopwatch = clock.CudaStopwatch(200.0) if device == "cuda" else clock.WallStopwatch()
    for _ in range(rounds):
        for one in found:
            seconds, _ = watch(lambda one=one: one.call(x))  # type: ignore[misc]
            one.us.append(seconds * 1e6)
    return found


def shape_of(text: str) -> tuple[int, int]:
    rows, _, columns = text.partition("x")
    if not (rows.isdigit() and columns.isdigit() and int(rows) and int(columns)):
        raise ArgumentError(f"--shape: expected ROWSxCOLUMNS, such as 4096x1024, got {text!r}")
    return int(rows), int(columns)


def row(shape: str, dtype: str, one: Contestant) -> dict[str, object]:
    """One line of the record."""
    rows, columns = shape_of(shape)
    gigabytes = one.moved * rows * columns * dtypes.parse(dtype).itemsize / 1e9
    median = statistics.median(one.us)
    return {
        "shape": shape,
        "dtype": dtype,
        "name": one.name,
        "us": round(median, 2),
        "least_us": round(min(one.us), 2),
        "moved": round(one.moved, 4),
        "gb_per_s": round(gigabytes / median * 1e6, 1),
    }


def show(rows: list[dict[str, object]]) -> None:
    table = Table(*(rows[0] if rows else ()), box=None)
    for line in rows:
        table.add_row(*map(str, line.values()))
    Console().print(table)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--shape", nargs="+", default=SHAPES, metavar="MxN", help=f"default: {' '.join(SHAPES)}")
    made.add_argument("--dtype", nargs="+", default=DTYPES, choices=["fp32", "fp16", "bf16"], help="default: bf16 fp32")
    made.add_argument("--rounds", type=terminal.positive, default=ROUNDS, metavar="N", help=f"default: {ROUNDS}")
    made.add_argument("--out", type=Path, metavar="FILE", help="write machine and medians as JSON")
    options = made.parse_args(arguments)
    return terminal.run("fused_softmax", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = [
        row(shape, dtype, one)
        for shape in options.shape
        for dtype in options.dtype
        for one in measure(shape_of(shape), dtypes.parse(dtype), options.rounds, device)
    ]
    show(rows)
    if options.out is not None:
        record = {
            "date": machine.today(),
            "machine": asdict(machine.describe(device)),
            "rounds": options.rounds,
            "rows": rows,
        }
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
