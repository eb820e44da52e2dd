"""Compares single PTX instructions on a GPU and on the emulator, bit by bit.

    python -m kernelmux.emulator.validation.hardware                     all on the emulator: still the recorded bits?
    python -m kernelmux.emulator.validation.hardware --measure bits.npz  on a GPU: runs all there, writes the results
    python -m kernelmux.emulator.validation.hardware --compare bits.npz  anywhere: compares them with the emulator's
    python -m kernelmux.emulator.validation.hardware --compare bits.npz --record FILE  and writes the record

Exit status: 0 all bits are as recorded (--compare: equal), 1 some are not, 2 usage error, or nothing could
run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from kernelmux.emulator.errors import EmulatorError
from kernelmux.emulator.validation.hardware.catalogue import cases
from kernelmux.emulator.validation.hardware.comparing import difference, digest, share
from kernelmux.emulator.validation.hardware.launching import Runnable, emulate
from kernelmux.emulator.validation.hardware.record import RECORD, HardwareRecord, InstructionClass, lost, read, save
from kernelmux.emulator.validation.progress import bar

OK, FAILED, USAGE = 0, 1, 2
READABLE = 999  # units of the last place; near zero there are so many that the difference itself says more
BATCH = 64  # cases that the driver compiles together


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="python -m kernelmux.emulator.validation.hardware",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--measure", type=Path, metavar="FILE", help="run the cases on this machine's GPU, write FILE")
    made.add_argument("--compare", type=Path, metavar="FILE", help="compare the results in FILE with the emulator's")
    made.add_argument("--record", type=Path, metavar="FILE", help="with --compare: write the record to FILE")
    made.add_argument("--list", action="store_true", help="name the cases; runs nothing")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    args = parser().parse_args(arguments)
    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=120)
    if args.list:
        for case in cases():
            console.print(f"{case.family}: {case.name}", markup=False)
        return OK
    try:
        if args.measure:
            return _measure(args.measure, console)
        if args.compare:
            return _compare(args.compare, args.record, console)
    except (OSError, ImportError) as error:
        print(f"hardware: {error}", file=sys.stderr)
        return USAGE
    return _check(console)


def _progress(items: Iterable[Any], total: int, what: str) -> Iterable[Any]:
    with bar() as progress:
        yield from progress.track(items, total=total, description=what)


# --- on a GPU -------------------------------------------------------------------------------------------------


def _measure(file: Path, console: Console) -> int:
    from kernelmux.emulator.validation.hardware import gpu

    about = gpu.describe() | {"command": "python -m kernelmux.emulator.validation.hardware --measure bits.npz"}
    every = cases()
    results: dict[str, np.ndarray[Any, Any]] = {}
    for start in _progress(range(0, len(every), BATCH), -(-len(every) // BATCH), "GPU"):
        batch = every[start : start + BATCH]
        for case, outputs in zip(batch, gpu.run(batch), strict=True):
            results |= {_key(case, i): values for i, values in enumerate(outputs)}
    np.savez_compressed(file, about=np.array(json.dumps(about)), **results)  # type: ignore[arg-type]  # by name
    console.print(f"{len(every)} cases ran on {about['gpu']}; results in {file}")
    return OK


def _key(case: Runnable, output: int) -> str:
    return f"{case.name} | {output}"


# --- anywhere -------------------------------------------------------------------------------------------------


def _compare(file: Path, target: Path | None, console: Console) -> int:
    record = compared(file)
    console.print(table(record))
    if target is not None:
        save(record, target)
        console.print(f"record written to {target}")
    return FAILED if record.differences else OK


def compared(file: Path) -> HardwareRecord:
    """The results of a GPU in `file` beside the emulator's."""
    with np.load(file) as stored:
        theirs = {name: stored[name] for name in stored.files}
    about = json.loads(str(theirs.pop("about")))
    known = [case for case in cases() if _key(case, 0) in theirs]
    record = HardwareRecord(about, {}, {}, {})
    for case in _progress(known, len(known), "emulator"):
        outputs = [theirs[_key(case, i)] for i in range(2) if _key(case, i) in theirs]
        apart = difference(case, _ours(case, outputs), outputs)
        record.gpu[case.name], record.results[case.name] = digest(case, outputs), apart.results
        if apart.differing:
            record.differences[case.name] = apart
    return record


def _ours(case: Runnable, like: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """The emulator's results; what it refuses differs in every bit."""
    try:
        return emulate(case)
    except EmulatorError as error:
        print(f"{case.name}: {' '.join(str(error).split())}", file=sys.stderr)
        return [~values for values in like]


def table(record: HardwareRecord) -> Table:
    """The comparison by instruction class, for people."""
    about = record.about
    shown = Table(
        "instructions",
        "cases",
        "results",
        "other bits",
        "farthest",
        title=f"{about['gpu']}, driver {about['driver']}, against the emulator",
    )
    for row in record.rows():
        style = "bold red" if row.differing else ""
        shown.add_row(
            row.family,
            str(row.cases),
            f"{row.results:,}",
            share(row.differing, row.results),
            distance(row),
            style=style,
        )
    return shown


def distance(row: InstructionClass) -> str:
    """The largest difference of a class: in units of the last place while that says something, and absolute."""
    if not row.differing:
        return ""
    if row.ulp is not None and row.ulp <= READABLE:
        return f"{row.ulp} ulp"
    return f"{row.absolute:.1e}" + ("" if row.ulp is not None else ", finite against Inf")


def _check(console: Console) -> int:
    record = read()
    console.print(table(record))
    problems = list(_progress(lost(record), len(record.gpu), "emulator"))
    for problem in problems:
        print(f"hardware: {problem}", file=sys.stderr)
    equal = len(record.gpu) - len(record.differences) - len(problems)
    console.print(f"{equal} of {len(record.gpu)} cases give the bits of {record.about['gpu']} ({RECORD.name})")
    return FAILED if problems else OK
