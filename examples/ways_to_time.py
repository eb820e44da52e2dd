"""One call, timed in every way that people time calls: what each way says of the same kernel.

    python examples/ways_to_time.py                                # softmax of 4096x1024 and 32768x16384, bf16, on the GPU
    python examples/ways_to_time.py --shape 4096x1024 --out ways.json

All but the first are medians. Without a GPU the ways that need none are taken on the CPU, and say nothing of kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import kernelmux as kx
from kernelmux.perf.rows import machine
from kernelmux.perf.timing import clock
from kernelmux.registry.cli import terminal
from kernelmux.registry.errors import ArgumentError, KernelmuxError

SHAPES, ROUNDS, TOGETHER = ["4096x1024", "32768x16384"], 50, 20
ALLOWED = 1e-2  # of a weight, beside float64: the result is rounded to bf16

Call = Callable[[], torch.Tensor]


def first(call: Call, device: str) -> float:
    """Seconds of the first call in a process whose compiler has no cache, until its result is there."""
    with tempfile.TemporaryDirectory(prefix="ways-to-time-") as folder:
        before = os.environ.get("TRITON_CACHE_DIR")
        os.environ["TRITON_CACHE_DIR"] = folder
        try:
            return synchronised(call, device)
        finally:
            os.environ.pop("TRITON_CACHE_DIR") if before is None else os.environ.update(TRITON_CACHE_DIR=before)


def host(call: Call, device: str) -> float:
    """Seconds until the call returns; its work may not have begun."""
    wait(device)
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def synchronised(call: Call, device: str) -> float:
    """Seconds by the host's clock until the work is done."""
    wait(device)
    begin = time.perf_counter()
    call()
    wait(device)
    return time.perf_counter() - begin


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def between_events(call: Callable[[], Any], sleep_us: float = 0.0) -> float:
    """Seconds between two events around a call; with a sleep the device has something to do until the call is queued."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    if sleep_us:
        clock.sleep_on_device(sleep_us)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def many(call: Call) -> float:
    """Seconds of each of several calls between two events."""

    def calls() -> None:
        for _ in range(TOGETHER):
            call()

    return between_events(calls, clock.LONGEST_SLEEP_US) / TOGETHER


def ways(call: Call, device: str) -> dict[str, Callable[[], float]]:
    """Every way, by its name on the page."""
    found = {
        "host clock, not synchronised": lambda: host(call, device),
        "host clock, synchronised": lambda: synchronised(call, device),
    }
    if device == "cpu":
        return found
    cold = clock.CudaStopwatch(200.0)
    return found | {
        "two events, empty queue": lambda: between_events(call),
        "two events, full queue, L2 as the last call left it": lambda: between_events(call, cold.sleep_us),
        f"the same, {TOGETHER} calls together": lambda: many(call),
        "two events, full queue, L2 overwritten before": lambda: cold(call)[0],
        "two events, nothing between": lambda: between_events(lambda: None, cold.sleep_us),
    }


def timed(shape: str, rounds: int, device: str) -> Iterator[dict[str, object]]:
    """The lines of a shape: name and microseconds."""
    x = torch.randn(rows_and_columns(shape), dtype=torch.bfloat16, device=device)
    backend = "triton" if device == "cuda" else "torch_ref"

    def call() -> torch.Tensor:
        return kx.softmax(x, backend=backend)

    yield {"shape": shape, "name": "host clock, the first call", "us": round(first(call, device) * 1e6)}
    check(call(), x)
    for name, way in ways(call, device).items():
        clock.rest() if device == "cuda" else None
        yield {"shape": shape, "name": name, "us": round(statistics.median(way() for _ in range(rounds)) * 1e6, 1)}


def check(y: torch.Tensor, x: torch.Tensor) -> None:
    """Raise unless the first rows are those of float64."""
    wanted = torch.softmax(x[:64].double(), 1)
    off = ((y[:64].double() - wanted).abs() / wanted).max().item()
    if not off <= ALLOWED:
        raise KernelmuxError(f"softmax: off by {off:.2g} of a weight, expected {ALLOWED} at most")


def rows_and_columns(text: str) -> tuple[int, int]:
    rows, _, columns = text.partition("x")
    if not (rows.isdigit() and columns.isdigit() and int(rows) and int(columns)):
        raise ArgumentError(f"--shape: expected ROWSxCOLUMNS, such as 4096x1024, got {text!r}")
    return int(rows), int(columns)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--shape", nargs="+", default=SHAPES, metavar="MxN", help=f"default: {' '.join(SHAPES)}")
    made.add_argument("--rounds", type=terminal.positive, default=ROUNDS, metavar="N", help=f"default: {ROUNDS}")
    made.add_argument("--out", type=Path, metavar="FILE", help="write machine and medians as JSON")
    options = made.parse_args(arguments)
    return terminal.run("ways_to_time", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = [row for shape in options.shape for row in timed(shape, options.rounds, device)]
    table = Table(*rows[0], box=None)
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)
    if options.out is not None:
        told = {"date": machine.today(), "machine": asdict(machine.describe(device)), "rounds": options.rounds}
        options.out.write_text(json.dumps(told | {"rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
