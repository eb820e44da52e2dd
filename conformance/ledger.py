"""The verified ledger: which variant passed the whole suite on which real GPU, with the keys of what was run.

`verified/<gpu>.json` is written by `--record`; docs/conformance.md tells of entries that were not. A variant is "verified"
while it launches what it launched then (`registry/launch_keys`) and its operator means what it meant (`keys/meaning`),
"stale" once either has changed, "unknown" while the keys of a changed source were not computed, and "emulated only" if no
GPU ever ran it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from kernelmux.conformance import files, matrix, report
from kernelmux.conformance.check import SPEC
from kernelmux.conformance.execute import Outcome
from kernelmux.conformance.keys import meaning
from kernelmux.conformance.options import Options
from kernelmux.conformance.plan import Item
from kernelmux.registry import backend as registered
from kernelmux.registry import catalog, launch_keys
from kernelmux.registry.conditions import sm
from kernelmux.registry.errors import ArgumentError, SpecError
from kernelmux.registry.files import between, file_stem
from kernelmux.registry.launch_keys import TIERS, digest, split

FOLDER = Path(__file__).with_name("verified")
BEGIN, END = "<!-- matrix -->", "<!-- /matrix -->"
VERIFIED, STALE, UNKNOWN = "verified", "stale", "unknown"
MARKS = {VERIFIED: "✓", STALE: "stale", UNKNOWN: "unknown", "emulated only": "emulated", "never run": "-"}


def check_recordable(options: Options) -> None:
    """Raise unless a run says enough to be recorded: a real GPU, all checks, at least tier ci."""
    if options.device != "cuda":
        raise ArgumentError("--record: what the emulator passes is not verified on a GPU; add --device cuda")
    if not options.complete or options.tier == "smoke":
        raise ArgumentError("--record: needs all checks, cases and dtypes, and tier ci or larger")
    books()  # a damaged one is better known before the run than behind it


def capability(device: torch.device) -> str:
    """sm_90 of an H100 and of an H200."""
    return sm(torch.cuda.get_device_capability(device))


def path_for(gpu: str) -> Path:
    """NVIDIA H200 -> verified/nvidia_h200.json."""
    return FOLDER / f"{file_stem(gpu)}.json"


def record(options: Options, items: list[Item], outcomes: list[Outcome]) -> str:
    """Enter every variant without a failure; a variant that failed loses its entry.

    One of whose items some did not report, in a run that was stopped, keeps what was known of it.
    """
    gpu = torch.cuda.get_device_name(options.where)
    path = path_for(gpu)
    new = {"schema": report.SCHEMA, "gpu": gpu, "capability": capability(options.where), "entries": {}}
    book: dict[str, Any] = json.loads(path.read_text()) if path.exists() else new
    passed, reported = 0, {o.item.id for o in outcomes}
    unknown = {(i.op, i.label) for i in items if i.id not in reported}
    for row in matrix.rows(outcomes):
        good = _sound(row)
        if row.label == SPEC or row.problem or (good and (row.op, row.label) in unknown):
            continue
        key = f"{row.op}/{row.label}"
        passed += good
        book["entries"].pop(key, None)
        if good:
            book["entries"][key] = _entry(row, options)
    write(book)
    return f"recorded: {passed} variants verified on {gpu} in {path.name}"


def write(book: dict[str, Any]) -> None:
    """Put the ledger of a GPU in place of the one in its file."""
    path = path_for(book["gpu"])
    path.parent.mkdir(exist_ok=True)
    files.write(path, json.dumps(book, indent=1, sort_keys=True) + "\n")
    books.cache_clear()


def _sound(row: matrix.Row) -> bool:
    """Nothing failed, and something was checked: a variant that this GPU cannot run passes nothing."""
    return all(o.status != "failed" for o in row.cells.values()) and any(o.passed for o in row.cells.values())


def _entry(row: matrix.Row, options: Options) -> dict[str, Any]:
    spec = catalog.spec(row.op)
    return {
        "oracle": meaning.oracle(spec),
        "judge": meaning.judge(),
        "asked": "".join(digest(case.text) for case in options.cases_of(spec)),
        "source": report.source_hash(row.label.partition("/")[0], row.op),
        "tier": options.tier,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "versions": report.versions(),
        "passed": sum(o.passed for o in row.cells.values()),
        "budget": round(max((o.budget for o in row.cells.values()), default=0.0), 3),
    }


@lru_cache(maxsize=1)
def books() -> tuple[dict[str, Any], ...]:
    """All ledgers, one per GPU."""
    return tuple(_book(path) for path in sorted(FOLDER.glob("*.json")))


def _book(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: the ledger is damaged ({error}); restore it, or record anew without it") from error
    if not isinstance(found, dict) or {"gpu", "entries"} - set(found):
        raise SpecError(f"{path}: the ledger is damaged: expected gpu and entries; restore it, or record anew")
    return found


def changed(entry: Mapping[str, Any], op: str, backend: str, variant: str) -> tuple[str, ...]:
    """What of a variant is not as it was when it was entered: "oracle", "judge", "launches", or "unknown": its launches."""
    spec = catalog.spec(op)
    if "oracle" in entry:
        found = [] if entry["oracle"] == meaning.oracle(spec) else ["oracle"]
        found += [] if meaning.alike(entry["judge"]) else ["judge"]
    else:  # entered before there were keys: the text of its spec tells
        found = [] if entry.get("spec") == spec.hash else ["oracle"]
    launches = launch_keys.compared(op, backend, variant, entry["source"], report.source_hash(backend, op))
    found += {launch_keys.CHANGED: ["launches"], launch_keys.UNKNOWN: [UNKNOWN]}.get(launches, [])
    return tuple(found)


def standing(entry: Mapping[str, Any], op: str, backend: str, variant: str) -> str:
    """How an entry stands: VERIFIED, STALE, or UNKNOWN where --rekey has not yet seen its sources."""
    found = changed(entry, op, backend, variant)
    return UNKNOWN if found == (UNKNOWN,) else STALE if found else VERIFIED


def unasked(entry: Mapping[str, Any], op: str) -> list[str]:
    """The cases of tiers smoke and ci that the spec has got since: what was verified without them stays so."""
    asked = set(split(entry["asked"])) if "asked" in entry else set()
    cases = (case for case in catalog.spec(op).cases if case.tier in TIERS)
    return [case.text for case in cases if asked and digest(case.text) not in asked]


def status(op: str, backend: str, variant: str) -> tuple[str, tuple[str, ...]]:
    """ "verified", "unknown" or "stale" and on which GPUs, else "emulated only" (it emulates) or "never run"."""
    entries = {b["gpu"]: b["entries"].get(f"{op}/{backend}/{variant}") for b in books()}
    known = {gpu: standing(e, op, backend, variant) for gpu, e in entries.items() if e}
    for word in (VERIFIED, UNKNOWN, STALE):
        if gpus := tuple(gpu for gpu, found in known.items() if found == word):
            return word, gpus
    return ("emulated only" if registered.backend(backend).emulates else "never run"), ()


def verified(ops: Sequence[str] = (), capability: str = "") -> tuple[str, ...]:
    """Every variant that passed on a GPU as it stands, as "op/backend/variant".

    ops: of these operators alone. capability: on a GPU of this one alone, "sm_90".
    """
    alike = {b["gpu"] for b in books() if capability in ("", b.get("capability"))}
    names = (
        (op, backend, variant)
        for op in ops or catalog.names()
        for backend in registered.backends()
        if registered.implements(backend, op)
        for variant in registered.variants(backend, op)
    )
    found = ((name, status(*name)) for name in names)
    return tuple("/".join(name) for name, (kind, gpus) in found if kind == VERIFIED and not alike.isdisjoint(gpus))


def table(ops: Sequence[str] = ()) -> str:
    """The support matrix in Markdown, of all operators unless some are named: per backend every variant with its mark."""
    names = registered.backends()
    gpus = ", ".join(b["gpu"] for b in books()) or "no GPU yet"
    lines = [f"| operator | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    lines += [f"| `{op}` | {' | '.join(_cell(op, name) for name in names)} |" for op in ops or catalog.names()]
    key = f"{MARKS[VERIFIED]} passed the suite on {gpus} as it stands; stale: passed before its last change; "
    key += "unknown: passed, and whether its last change matters is not computed (--rekey); "
    return "\n".join([*lines, "", key + "emulated: passes on the emulator, no GPU has run it; - neither."])


def _cell(op: str, backend: str) -> str:
    found = registered.variants(backend, op) if registered.implements(backend, op) else {}
    return ", ".join(f"{v} {MARKS[status(op, backend, v)[0]]}" for v in found) or "-"


def command(file: str, ops: Sequence[str], console: Console) -> int:
    """Print the matrix of these operators, or of all; or write that of all between its markers in a file."""
    if not file:
        console.print(table(ops), markup=False, soft_wrap=True)
        return 0
    path = Path(file).resolve()
    text = _text(path, file)
    content = table()
    try:
        text = between(text, BEGIN, END, content)
    except ValueError as error:
        raise ArgumentError(f"--matrix {file}: {error} in the file") from error
    try:
        files.write(path, text)
    except OSError as error:
        raise ArgumentError(f"--matrix {file}: cannot be written: {error.strerror}") from error
    return 0


def _text(path: Path, file: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ArgumentError(f"--matrix {file}: cannot be read: {reason}") from error
