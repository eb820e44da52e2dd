"""How often does a tree stay silent when it is compared with itself?

    python -m kernelmux.perf.cli.silence --sets 4 --times 5 --json silence.json --op softmax --dtype bf16

Every verdict but SAME is a false alarm, or a doubt. A set is three new processes, as every comparison has. A row that
changes is not timed once more in other processes, as `--against` does: the false alarms that this prevents are counted.
Exit status: 0 no row was called faster or slower or failed, 1 one was, 2 usage error.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kernelmux.perf.against import trees, verdict_text
from kernelmux.perf.against.agenda import agenda
from kernelmux.perf.against.session import Session, Setup
from kernelmux.perf.against.verdict import AMBIGUOUS, SAME, Judged
from kernelmux.perf.cli import main as cli
from kernelmux.perf.cli.against import terminable
from kernelmux.perf.planning import plan
from kernelmux.perf.rows import machine, output_files
from kernelmux.perf.rows.codec import encode
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.registry.cli import terminal
from kernelmux.registry.util.files import json_rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    return terminal.run("silence", lambda: _run(words))


def _run(words: list[str]) -> int:
    own, others = _parser().parse_known_args(words)
    options = cli.options_of(cli.parser().parse_args(others))
    plan.rows(options)  # for its errors
    output_files.writable(Path(own.json), "--json", made=True)
    judged: list[Judged] = []
    interrupted = _fill(judged, options, own.sets, own.times)
    counts = Counter(row.verdict for row in judged)
    _write(Path(own.json), options.device, shlex.join(words), counts, judged)
    print(f"{len(judged)} judgements: " + ", ".join(f"{n} {verdict}" for verdict, n in counts.items()))
    if interrupted:
        return terminal.say("silence", "interrupted; the verdicts so far are kept", terminal.INTERRUPTED)
    return int(bool(counts.keys() - {SAME, AMBIGUOUS}))


def _fill(judged: list[Judged], options: PerfOptions, sets: int, times: int) -> bool:
    """Judge, a line per verdict; whether Ctrl-C ended it."""
    try:
        with terminable():
            for row in _judged(options, sets, times):
                judged.append(row)
                print(verdict_text.line(row), flush=True)
    except KeyboardInterrupt:
        return True
    return False


def _write(path: Path, device: str, words: str, counts: dict[str, int], judged: list[Judged]) -> None:
    told = {
        "kind": "kernelmux.perf.cli.silence",
        "schema": 1,
        "date": machine.today(),
        "command": f"python -m kernelmux.perf.cli.silence {words}",
        "machine": encode(machine.describe(device)),
        "verdicts": counts,
        "rows": [encode(row) for row in judged],
    }
    output_files.write(path, json_rows(told) + "\n")


def _parser() -> argparse.ArgumentParser:
    made = terminal.Parser(
        prog="python -m kernelmux.perf.cli.silence",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--sets", type=terminal.positive, default=4, metavar="N", help="sets of processes (default: 4)")
    made.add_argument("--times", type=terminal.positive, default=5, metavar="N", help="in each set (default: 5)")
    made.add_argument("--json", default="silence.json", metavar="FILE", help="for the verdicts (default: silence.json)")
    made.epilog = "All other options are those of python -m kernelmux.perf that select rows."
    return made


def _judged(options: PerfOptions, sets: int, times: int) -> Iterator[Judged]:
    """The verdicts, set by set; the processes start side by side and then wait for their turn."""
    here = trees.here()
    setup = Setup(here, here, options.device, options.row_limit)
    with tempfile.TemporaryDirectory(prefix="kernelmux-silence-") as folder, ExitStack() as opened:
        sessions = [opened.enter_context(Session(setup, _logs(Path(folder, str(i))))) for i in range(sets)]
        for session in sessions:
            session.greet()
        rows: Any = agenda(*sessions[0].rows(options), everything=True).rows
        for session in sessions:
            yield from (session.judge(row) for row in rows for _ in range(times))


def _logs(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    raise SystemExit(main())
