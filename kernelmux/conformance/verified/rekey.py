"""`python -m kernelmux.conformance --rekey`: computes the keys of sources that have none, and says what they show.

It needs no GPU, but the compilers that `launch_keys.json` was made with. `--rekey pins` moves to those that are installed,
or to another format of keys (`launch_keys.FORMAT`): everything is computed anew, and records keep their standing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from queue import Queue

from kernelmux.conformance.report import artifacts, output_files
from kernelmux.conformance.verified import ledger, meaning
from kernelmux.registry import catalog, elsewhere
from kernelmux.registry.backend import launch_keys, package_versions, timings, tuned_configs
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.launch_keys import DIGITS, FORMAT, OTHER, Keys, SourceKeys, split
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.util.fingerprint import digest

MISSING, PINS = "missing", "pins"  # what --rekey computes
WORKERS = 2
HEAVY = ("attention", "matmul", "linear", "conv2d")  # their kernels take longest to compile, so they come first
Pair = tuple[str, str]  # operator and backend
Say = Callable[[str], None]


def command(what: str, ops: Sequence[str], say: Say) -> int:
    """Compute, write, report; exit status 1 if some keys could not be computed."""
    known, here = launch_keys.known(), versions()
    if what == MISSING and known.rows and (here, FORMAT) != (known.made_with, known.format):
        raise ArgumentError(
            f"--rekey: keys are computed with {_versions(known.made_with)} (format {known.format}), and here is"
            f" {_versions(here)} (format {FORMAT}): install those, or move all keys to these by --rekey {PINS}"
        )
    if what == PINS and ops:
        raise ArgumentError(f"--rekey {PINS}: moves the keys of all operators, got --op {' '.join(ops)}")
    if what == PINS and known.rows and known.format != FORMAT:
        restamp(known)
    today = {pair: artifacts.source_hash(pair[1], pair[0]) for pair in pairs(ops)}
    wanted = [p for p, source in today.items() if what == PINS or (*p, source) not in known.rows]
    before, made = standing(ops), dict[launch_keys.Place, SourceKeys]()
    for row in compute(wanted, say):
        made[row.place] = row
        if what == MISSING:  # what is done is done, if the rest is interrupted
            _write(here, {**known.rows, **made})
    rows = {**(dict(carried(known, made)) if what == PINS else known.rows), **made}
    spoken_of = {*recorded(), *((*p, source) for p, source in today.items())}
    rows = {place: row for place, row in rows.items() if place in spoken_of or ops}
    _write(here, rows)
    for line in changes(before, standing(ops)):
        say(line)
    untold = sorted({f"{r.op}/{r.backend}/{v}" for r in made.values() for v, k in r.keys.items() if "?" in k})
    for name in untold:
        say(f"{name}: some of its calls could not be recorded; see above")
    say(f"{len(made)} sources computed, {len(rows)} on record in {launch_keys.FILE.name}")
    return int(bool(untold))


def _write(made_with: dict[str, str], rows: dict[launch_keys.Place, SourceKeys]) -> None:
    output_files.write(launch_keys.FILE, launch_keys.text(Keys(FORMAT, made_with, rows, meanings(), texts())))
    launch_keys.known.cache_clear()


@cache
def meanings() -> dict[str, str]:
    """The keys of what every operator means, and of the judge."""
    return {op: meaning.oracle(catalog.spec(op)) for op in catalog.names() if elsewhere.owner(op) is None} | {
        "judge": meaning.judge()
    }


@cache
def texts() -> str:
    """A digest of the sources that say what operators mean and how results are judged."""
    registry, suite = Path(launch_keys.__file__).parents[1], Path(ledger.__file__).parents[1]
    homes = (
        *(registry / room for room in ("spec", "ops", "backend")),
        *(suite / room for room in ("inputs", "judging")),
    )
    modules = sorted(path for home in homes for path in home.glob("*.py"))
    modules.remove(Path(launch_keys.__file__))  # where the format is
    return digest(path.read_text(encoding="utf-8") for path in modules)


def restamp(known: Keys) -> None:
    """Give entries of the ledger keys of today's format, if what they mean is what operators mean today."""
    if known.texts != texts():
        raise ArgumentError(
            f"--rekey {PINS}: the format of keys has changed, and specs or the judge too since the last --rekey: run it"
            " first where the format alone has changed"
        )
    for book in ledger.own():
        for key, entry in book["entries"].items():
            op = key.split("/")[0]
            if op in meanings() and entry.get("oracle") == known.meanings.get(op):
                entry["oracle"] = meanings()[op]
            if entry.get("judge") in (known.meanings["judge"], *meaning.ALIKE):
                entry["judge"] = meanings()["judge"]
        ledger.write(book)


def versions() -> dict[str, str]:
    """What keys depend on: of torch the calls of its own operators, of the others the PTX."""
    from kernelmux.emulator import nvrtc

    found = {name: package_versions.version(name) or "" for name in ("torch", "triton")}
    return {**{n: v.partition("+")[0] for n, v in found.items()}, "NVRTC": ".".join(map(str, nvrtc.version()))}


def _versions(made_with: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in made_with.items())


def pairs(ops: Sequence[str]) -> list[Pair]:
    """Every operator and backend of ours: of others no record is kept here."""
    own = [name for name in registered.backends() if registered.package(name).startswith("kernelmux.backends.")]
    of_ours = [op for op in ops or catalog.names() if elsewhere.owner(op) is None]
    found = [(op, name) for op in of_ours for name in own if registered.implements(name, op)]
    return sorted(found, key=lambda pair: (not pair[0].startswith(HEAVY), pair))


def timed() -> dict[str, list[tuple[str, str]]]:
    """Of each operator the workloads and dtypes that have times on some GPU."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in timings.TABLES.place.all():
        for row in timings.TABLES.read(path).rows:
            if (item := (row.workload, row.dtype)) not in found.setdefault(row.op, []):
                found[row.op].append(item)
    return found


def recorded() -> set[launch_keys.Place]:
    """The sources that records speak of: of the ledger, of measured times and of tuned configurations."""
    names = (
        (*key.split("/")[:2], entry["source"]) for book in ledger.books() for key, entry in book["entries"].items()
    )
    found: set[launch_keys.Place] = {(op, backend, source) for op, backend, source in names}
    for tables in (timings.TABLES, tuned_configs.TABLES):
        for path in tables.place.all():
            found |= {(row.op, row.backend, row.source) for row in tables.read(path).rows}
    return found


def compute(wanted: Sequence[Pair], say: Say) -> Iterator[SourceKeys]:
    """The rows of the tree as it stands, as they are done, by processes that stand for the card."""
    times = timed()
    waiting = {(op, b): [v for v in registered.variants(b, op) if not elsewhere.whose(op, v)] for op, b in wanted}
    done: dict[Pair, dict[str, tuple[str, str]]] = {pair: {} for pair in wanted}
    with ThreadPoolExecutor(WORKERS) as pool, ExitStack() as stack:
        idle: Queue[subprocess.Popen[str]] = Queue()
        for _ in range(min(WORKERS, sum(map(len, waiting.values())))):
            idle.put(stack.enter_context(_recorder()))

        def answer(pair: Pair, variant: str) -> tuple[Pair, str, tuple[str, str]]:
            process = idle.get()
            assert process.stdin and process.stdout
            try:
                print(json.dumps([*pair, variant, times.get(pair[0], [])]), file=process.stdin, flush=True)
                if not (line := process.stdout.readline()):
                    raise RuntimeError(f"{'/'.join(pair)}/{variant}: the process that records launches ended")
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            finally:
                idle.put(process)
            asked, keys = json.loads(line)
            return pair, variant, (asked, keys)

        for job in as_completed(
            [pool.submit(answer, p, variant) for p, ladder in waiting.items() for variant in ladder]
        ):
            pair, variant, found = job.result()
            done[pair][variant] = found
            if len(done[pair]) == len(waiting[pair]):
                say(f"{'/'.join(pair)}: {len(found[0]) // DIGITS} calls of each variant")
                keys = {name: done[pair][name][1] for name in waiting[pair]}
                yield SourceKeys(*pair, artifacts.source_hash(pair[1], pair[0]), found[0], keys)


def _recorder() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kernelmux.conformance.verified.launches"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def carried(old: Keys, new: dict[launch_keys.Place, SourceKeys]) -> Iterable[tuple[launch_keys.Place, SourceKeys]]:
    """Rows of sources that are not today's, where the keys are made anew.

    What launched the same as today by the old keys has today's new key; what did not has none of today's.
    """
    today = {(op, backend): row for (op, backend, _), row in new.items()}
    for place, row in old.rows.items():
        now = today.get(place[:2])
        before = old.rows.get(now.place) if now else None
        if now and before and place not in new:
            yield place, SourceKeys(*place, row.asked, {v: _carried(v, row, before, now) for v in row.keys})


def _carried(variant: str, then: SourceKeys, before: SourceKeys, now: SourceKeys) -> str:
    keys, same, fresh = then.of(variant), before.of(variant), now.of(variant)
    return "".join(fresh.get(i, OTHER) if i in keys and same.get(i) == keys[i] else OTHER for i in split(then.asked))


def standing(ops: Sequence[str]) -> dict[str, str]:
    """How each entry of the ledger and each measured time stands."""
    found = {}
    for book in ledger.books():
        for key, entry in book["entries"].items():
            if not ops or key.split("/")[0] in ops:
                found[f"{key} on {book['gpu']}"] = ledger.standing(entry, *key.split("/"))
    for path in timings.TABLES.place.all():
        table = timings.TABLES.read(path)
        for t in table.rows:
            if not ops or t.op in ops:
                name = f"{t.op}/{t.backend}/{t.variant} {t.workload} {t.dtype}"
                found[f"the time of {name} on {table.gpu}"] = "counts" if t.current else "stale"
    return found


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """A line for each record that stands otherwise than before, or whose sources have no key."""
    lines = [f"{n}: {after[n]}, was {before[n]}" for n in after if after[n] != before.get(n)]
    return lines + [f"{n}: {after[n]}" for n in after if after[n] == before.get(n) == ledger.UNKNOWN]
