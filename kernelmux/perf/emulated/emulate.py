"""`kernelmux emulate <op> --backend cuda/naive --shape x=64x64`: one call on the emulator, as a profiler sees it.

Prints, beside the source of every kernel that is launched: instructions of warps, sectors per request and the fewest
possible, bank conflicts, bytes. Draws a picture of one warp's accesses on request. Needs no GPU, and uses none.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from kernelmux import emulator
from kernelmux.emulator.traces import Trace, write_picture
from kernelmux.perf.emulated import trace_table
from kernelmux.perf.planning import memory_fit
from kernelmux.perf.rows import output_files
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch, temporary_backends
from kernelmux.registry.cases import draw, generator
from kernelmux.registry.choice import requests
from kernelmux.registry.cli import target_device, terminal
from kernelmux.registry.errors import ArgumentError, UnsupportedError
from kernelmux.registry.spec import Call, value_domains

OK, FAILED = 0, 1
WIDTH = 160  # of a table that goes into a file
EPILOG = """examples:
  kernelmux emulate transpose --backend cuda/naive --shape x=64x64:fp32
  kernelmux emulate transpose --backend cuda/tiled cuda/padded --shape x=64x64:fp32 --picture tiles.html
  kernelmux emulate softmax --backend triton --shape x=37x1000:fp16 --block 3 --warp 1 --picture softmax.html
  kernelmux emulate matmul --backend cuda/tiled --shape a=64x64,b=64x64 --lines 6 --json matmul.json
  kernelmux emulate matmul --backend cuda --shape a=64x64:fp16,b=64x64:fp16 --card rtx4090
  kernelmux emulate softmax --impl mine.py:softmax --shape x=37x1000

Exit status: 0 the call ran, 1 the kernel failed on the emulator, 2 usage error.
"""


def parser() -> argparse.ArgumentParser:
    made = terminal.Parser(
        prog="kernelmux emulate",
        description="Runs one call on the emulator and says what its kernels do to memory, line by line.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("op")
    chosen = made.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--backend", nargs="+", metavar="B", help="cuda, triton, or variants: cuda/tiled cuda/padded")
    chosen.add_argument("--impl", default="", metavar="FILE.py:FUNCTION", help="one function from any file instead")
    made.add_argument("--shape", required=True, metavar="NAME=MxN[:dtype],...", help="as for `kernelmux explain`")
    made.add_argument("--card", metavar="CARD", help=f"emulate {target_device.CARD} (default: an H200)")
    made.add_argument("--block", type=int, default=0, metavar="B", help="the block to draw, by its linear number")
    made.add_argument("--warp", type=int, default=0, metavar="W", help="its warp to draw")
    made.add_argument("--lines", type=int, metavar="N", help="only the N lines that cost most (default: all)")
    made.add_argument("--picture", type=Path, metavar="FILE", help="draw the accesses of the warp: .html or .svg")
    made.add_argument("--json", type=Path, metavar="FILE", help="write all counts")
    made.add_argument(
        "--limit",
        type=terminal.seconds,
        default=120.0,
        metavar="S",
        help="seconds that one launch may take (default: 120)",
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    return terminal.run("kernelmux emulate", lambda: _main(parser().parse_args(arguments)))


def _main(options: argparse.Namespace) -> int:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    try:
        _check(options)
        with target_device.standing(options.card, "--card"), temporary_backends.joined(options.impl, options.op):
            traces = [run(options, backend) for backend in options.backend or [temporary_backends.NAME]]
        for _, trace in traces:
            _check_drawn(options, trace)
    except emulator.EmulatorError as error:
        return terminal.say("kernelmux emulate", f"the kernel failed on the emulator\n{error}", FAILED)
    _report(console, options, traces)
    return OK


def _check(options: argparse.Namespace) -> None:
    for name in ("block", "warp"):
        if getattr(options, name) < 0:
            raise ArgumentError(f"--{name}: expected a number from 0 on, got {getattr(options, name)}")
    if options.lines is not None and options.lines < 1:
        raise ArgumentError(f"--lines: expected at least 1, got {options.lines}")
    if options.picture is not None and options.picture.suffix not in (".html", ".svg"):
        raise ArgumentError(f"--picture: expected a file named .html or .svg, got {str(options.picture)!r}")
    for name in ("json", "picture"):
        if getattr(options, name) is not None:
            output_files.writable(getattr(options, name), f"--{name}")


def run(options: argparse.Namespace, backend: str) -> tuple[str, Trace]:
    """The call with the variant that ran, and what its launches did."""
    spec = catalog.spec(options.op)
    shaped = spec.hypothetical(spec.case(options.shape))
    memory_fit.require(shaped, f"--shape {options.shape}")
    chosen = _choose(shaped, backend)
    drawn = {name: _drawn(shaped, name) for name in shaped.tensors}
    inputs = value_domains.lawful(spec, drawn, shaped.scalars)
    scalars = {s.name: shaped.arguments[s.name] for s in spec.scalars}
    with warnings.catch_warnings(), emulator.time_limit(options.limit):
        warnings.filterwarnings("ignore", message=".*on the emulator.*")  # expected here: this command emulates
        warnings.filterwarnings("ignore", module="triton.*")
        with emulator.trace(options.block, options.warp) as trace:
            dispatch.function(spec.name)(**inputs, **scalars, backend=chosen)
    if not trace.launches:
        raise UnsupportedError(f"{spec.name}: {chosen} launches no kernel for {options.shape}; nothing to trace")
    for launch in trace.launches:
        launch.needed = int(shaped.cost.bytes)
    return f"{spec.name} {chosen} {options.shape}", trace


def _choose(shaped: Call, backend: str) -> str:
    """The variant that would run; an error if none can, or if its kernels do not run on the emulator."""
    request = requests.parse(backend, "--backend")
    decision = dispatch.decide(shaped, request)
    if decision.chosen is None:
        raise UnsupportedError(f"{decision}")
    if not registered.backend(decision.chosen.backend).emulates:
        able = [name for name in registered.backend_names() if registered.backend(name).emulates]
        raise ArgumentError(
            f"--backend: expected one whose kernels run on the emulator ({', '.join(able)}), got {backend!r}"
        )
    return decision.chosen.name


def _drawn(shaped: Call, name: str) -> Any:
    tensor = shaped.arguments[name]
    return draw(tuple(tensor.shape), tensor.dtype, generator(shaped.spec.name, name))


def _check_drawn(options: argparse.Namespace, trace: Trace) -> None:
    """The block and the warp to draw must exist in some launch."""
    sizes = [(launch.grid[0] * launch.grid[1] * launch.grid[2], -(-launch.threads // 32)) for launch in trace.launches]
    most = max(blocks for blocks, _ in sizes), max(warps for _, warps in sizes)
    for name, asked, count in zip(("block", "warp"), (options.block, options.warp), most, strict=True):
        if asked >= count:
            raise ArgumentError(f"--{name}: expected 0 to {count - 1} for this call, got {asked}")


def _report(console: Console, options: argparse.Namespace, traces: list[tuple[str, Trace]]) -> None:
    launches = [(label, launch) for label, trace in traces for launch in trace.launches]
    for label, launch in launches:
        console.print(f"[bold]{escape(label)}[/bold]", soft_wrap=True)
        trace_table.show(console, launch, options.lines)
    if options.json is not None:
        content = {"schema": 1, "launches": [{"call": label} | launch.as_dict() for label, launch in launches]}
        output_files.write(options.json, json.dumps(content, indent=1) + "\n")
    if options.picture is not None:
        write_picture(launches, options.picture)
        console.print(f"picture: {options.picture}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
