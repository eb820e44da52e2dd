"""The judge is tried: every attack has to be refused, for the reason that it names, and no honest kernel may be.

Each is judged by a program of its own, as a user would do it: what counts is its exit status, and what it printed.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import kernelmux
from kernelmux.judge.collection import Entry, attacks, honest
from kernelmux.registry.errors import ArgumentError, unknown
from kernelmux.runner.interrupts import INTERRUPTED
from kernelmux.runner.machine import available_cores

MEMORY = 24 << 30  # bytes of a GPU for each that is judged at once
LIMIT = 600.0  # seconds for one: no attack may hang the judge
_running = set[subprocess.Popen[str]]()
FORGED, CAUGHT, OTHERWISE, LATE, REFUSED, PASSED = (
    "forged",
    "caught",
    "caught otherwise",
    "not judged in time",
    "refused",
    "passed",
)


@dataclass(frozen=True)
class Tried:
    """How one went. outcome: "forged": it got a good verdict; "caught", or "caught otherwise": refused, but the finding is
    not the one that it names; of an honest kernel "passed" or "refused".
    """

    name: str
    family: str
    outcome: str
    status: int | None
    last: str
    seconds: float

    @property
    def wrong(self) -> bool:
        return self.outcome in (FORGED, LATE, REFUSED)


def command(
    families: Sequence[str], processes: int, sample: int, seed: int | None, file: str | None, device: str | None
) -> int:
    """Run the attacks of some families, or all, and the honest kernels; exit status 0 if none is forged, none refused.

    device: of the tensors; None for a GPU if there is one.
    """
    console = Console(highlight=False)
    chosen = list(_chosen(families))
    if sample and sample < len(chosen):
        chosen = random.Random(seed or 0).sample(chosen, sample)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    able = [e for e in chosen if e.needs != "gpu" or device == "cuda"]
    with ThreadPoolExecutor(processes or _at_once(device)) as pool:
        going = [pool.submit(attempt, entry, device) for entry in able]
        steps = track(as_completed(going), "judging", len(going), console=console, disable=not console.is_terminal)
        found, interrupted = list[Tried](), False
        try:
            for future in steps:
                found.append(future.result())
                if not console.is_terminal:
                    one = found[-1]
                    reason = f": {one.last}" if one.wrong else ""
                    said = f"[{len(found)}/{len(going)}] {one.outcome}: {one.family}/{one.name}{reason}"
                    console.print(said, markup=False, soft_wrap=True)
        except KeyboardInterrupt:
            interrupted = True
            pool.shutdown(wait=False, cancel_futures=True)
            for child in list(_running):
                child.kill()
    found.sort(key=lambda one: (one.family, one.name))
    show(found, len(chosen) - len(able), console)
    if file:
        Path(file).write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n", encoding="utf-8")
    if interrupted:
        console.print(f"interrupted: {len(going) - len(found)} were not judged", markup=False)
        return INTERRUPTED
    return int(any(one.wrong for one in found))


def _at_once(device: str) -> int:
    cores = available_cores() // 2
    fit = torch.cuda.get_device_properties(0).total_memory // MEMORY if device == "cuda" else cores
    return max(1, min(cores, fit))


def _chosen(families: Sequence[str]) -> Iterator[Entry]:
    every = [*attacks(), *honest()]
    known = sorted({e.family for e in every})
    for family in families:
        if family not in known:
            raise unknown("family", family, known, "--attack")
    if not every:
        raise ArgumentError("--attack: there are no attacks in this installation")
    yield from (e for e in every if not families or e.family in families)


def attempt(entry: Entry, device: str) -> Tried:
    """Judge one. What it may leave on the machine is not looked for: the walls of the judge are to hold it."""
    with tempfile.TemporaryDirectory(prefix="kernelmux-attack-") as folder:
        verdict = Path(folder) / "verdict.json"
        given = [f"{entry.path}:{entry.function}", "--op", entry.op, "--device", device, "--json", str(verdict)]
        given += ["--allow", entry.allow] if entry.allow else []
        given += ["-x", "--seconds", "10"] if entry.found else []
        environment = {**os.environ, "PYTHONPATH": str(Path(kernelmux.__file__).parents[1])}
        program = [sys.executable, "-m", "kernelmux.judge", *given]
        piped, begun = subprocess.PIPE, time.perf_counter()
        child = subprocess.Popen(program, stdout=piped, stderr=piped, text=True, errors="replace", env=environment)
        _running.add(child)
        try:
            said = child.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            return Tried(entry.name, entry.family, LATE, None, "", LIMIT)
        finally:
            _running.discard(child)
        ran = subprocess.CompletedProcess(program, child.returncode, *said)
        seconds, last = time.perf_counter() - begun, _last(ran.stdout + ran.stderr)
        return Tried(entry.name, entry.family, _outcome(entry, ran, verdict), ran.returncode, last, round(seconds, 1))


def _outcome(entry: Entry, ran: subprocess.CompletedProcess[str], verdict: Path) -> str:
    """A good verdict is forged, wherever it stands: in the exit status or in the file."""
    told: dict[str, Any] = json.loads(verdict.read_text(encoding="utf-8")) if verdict.exists() else {}
    good = ran.returncode == 0 or told.get("good", False)
    if not entry.found:
        return PASSED if good and ran.returncode == 0 else REFUSED
    if good:
        return FORGED
    return CAUGHT if re.search(entry.found, ran.stdout + ran.stderr) else OTHERWISE


def _last(text: str) -> str:
    """The first line that tells of a failure, with the one that says why."""
    lines = text.splitlines()
    failed = next((i for i, line in enumerate(lines) if line.startswith(("✗", "not acceptable"))), len(lines) - 1)
    return " | ".join(" ".join(line.split()) for line in lines[max(0, failed) :][:2])[:400]


def show(found: Sequence[Tried], left_out: int, console: Console) -> None:
    """A row for each family, then what went wrong."""
    table = Table("family", "tried", "caught", "caught otherwise", "forged or late", box=None)
    for family in dict.fromkeys(one.family for one in found if one.outcome not in (PASSED, REFUSED)):
        own = [one.outcome for one in found if one.family == family]
        counts = [len(own), own.count(CAUGHT), own.count(OTHERWISE), own.count(FORGED) + own.count(LATE)]
        table.add_row(family, *map(str, counts))
    console.print(table)
    for one in found:
        if one.wrong or one.outcome == OTHERWISE:
            console.print(f"{one.outcome}: {one.family}/{one.name}: {one.last}", markup=False, soft_wrap=True)
    kept = [one.outcome for one in found if one.outcome in (PASSED, REFUSED)]
    tried = [one for one in found if one.outcome not in (PASSED, REFUSED)]
    forged = sum(one.wrong for one in tried)
    said = (
        f"{forged} of {len(tried)} attacks forged or late, {kept.count(REFUSED)} of {len(kept)} honest kernels refused"
    )
    console.print(f"{said}, {left_out} left out without a GPU", markup=False)
