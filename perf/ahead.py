"""Compiles ahead: processes side by side call every variant once, so that the timing worker finds its code on disk.

NVRTC and Triton take seconds per kernel and one core; the caches of CuPy and Triton are shared between processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import torch

from kernelmux.perf import inputs, peers
from kernelmux.perf.harness import PLAN
from kernelmux.perf.json_form import decode
from kernelmux.perf.options import from_dict
from kernelmux.perf.plan import Row
from kernelmux.registry import backend as registered
from kernelmux.registry import guests
from kernelmux.registry.spec import Call

LIMIT = 150.0  # seconds; the timing worker compiles what is left
WORTH = 12  # rows; with fewer, importing torch takes longer than compiling


def compile_all(folder: Path, rows: int, jobs: int, environment: dict[str, str]) -> None:
    """Run the processes to their end; the timing worker reports what fails."""
    if jobs < 1 or rows < WORTH:
        return
    with (folder / "ahead.log").open("w") as log:
        command = [sys.executable, "-m", "kernelmux.perf.ahead", str(folder)]
        started = [
            subprocess.Popen([*command, str(i), str(jobs)], stdout=log, stderr=subprocess.STDOUT, env=environment)
            for i in range(jobs)
        ]
        deadline = time.monotonic() + LIMIT
        try:
            for process in started:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, deadline - time.monotonic()))
        finally:
            for process in started:
                process.kill()
                process.wait()


def main(folder: Path, share: int, of: int) -> None:
    """Call once what belongs to one share of the plan: every so many groups of rows."""
    told = json.loads((folder / PLAN).read_text())
    options = from_dict(told["options"])
    if options.peers:
        peers.join()
    ExitStack().enter_context(guests.joined(options.impl, "".join(options.ops)))  # until the process ends
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in (decode(Row, fields, PLAN) for fields in told["rows"]):
        groups.setdefault(row.group, []).append(row)
    for rows in list(groups.values())[share::of]:
        call = inputs.one(rows[0], options.device)
        for row in rows:
            if not row.again:
                _try(row, call)


def _try(row: Row, call: Call) -> None:
    try:
        implementation = registered.variants(row.backend, row.op)[row.variant]
        implementation.fn(*inputs.Inputs((call,)).arguments(implementation)[0])
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except Exception as error:
        print(f"{row.id}: {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
