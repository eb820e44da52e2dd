"""The verified ledger: which variant passed the whole suite on which real GPU, with the keys of what was run.

`records/<gpu>/verified.json` is written by `--record`; docs/conformance.md tells of entries that were not. A package with
operators has a folder `verified` with a file for each GPU, for its own implementations. A variant is "verified" while it
launches what it launched then (`registry.backend.launch_keys`) and its operator means what it meant (`keys.meaning`),
"stale" once either has changed, "unknown" while the keys of a changed source were not computed, and has "no record"
otherwise: no GPU has run it, or it failed. What the emulator says is not recorded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from kernelmux.conformance.check import SPEC
from kernelmux.conformance.options import Options
from kernelmux.conformance.report import artifacts, matrix, output_files
from kernelmux.conformance.session import plan
from kernelmux.conformance.session.execute import Outcome
from kernelmux.conformance.session.plan import Item
from kernelmux.conformance.verified import meaning
from kernelmux.registry import catalog, elsewhere
from kernelmux.registry.backend import launch_keys
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.launch_keys import TIERS, digest, split
from kernelmux.registry.conditions import sm
from kernelmux.registry.errors import ArgumentError, SpecError
from kernelmux.registry.util.files import RECORDS, GpuFiles, between, file_stem, in_full, json_rows, said_once

NAME = "verified"  # of the folder of a package
PLACE = GpuFiles(RECORDS, "verified.json")
SAID_ONCE = ("versions", "asked")  # what entries share, in the files that ship
BEGIN, END = "<!-- matrix -->", "<!-- /matrix -->"
VERIFIED, STALE, UNKNOWN, NO_RECORD = "verified", "stale", "unknown", "no record"
MARKS = {VERIFIED: "✓", STALE: "stale", UNKNOWN: "unknown", NO_RECORD: "no record"}


def check_recordable(options: Options, coverage: bool = False) -> None:
    """Raise unless a run says enough to be recorded: a real GPU, all checks, at least tier ci.

    coverage: what is recorded without a GPU is which blocks of kernels the trials of tier ci run.
    """
    if options.device != "cuda" and coverage and options.tier != "ci":
        raise ArgumentError(f"--record --coverage: expected tier ci, got {options.tier}")
    if options.device != "cuda" and not coverage:
        raise ArgumentError("--record: what the emulator passes is not verified on a GPU; add --device cuda")
    if options.card:
        raise ArgumentError("--record: the GPU stands for a lesser card, which has verified nothing; leave out --card")
    if not options.complete or options.tier == "smoke":
        raise ArgumentError("--record: needs all checks, cases and dtypes, and tier ci or larger")
    books()  # a damaged one is better known before the run than behind it


def capability(device: torch.device) -> str:
    """sm_90 of an H100 and of an H200."""
    return sm(torch.cuda.get_device_capability(device))


def path_for(gpu: str, op: str, label: str) -> Path:
    """NVIDIA H200 -> nvidia_h200/verified.json; of a variant from a package its verified/nvidia_h200.json."""
    package = elsewhere.whose(op, label.partition("/")[2])
    return (GpuFiles(package.folder / NAME) if package else PLACE).of(gpu)


def record(options: Options, items: list[Item], outcomes: list[Outcome]) -> str:
    """Enter every variant without a failure for each GPU that ran it; a variant that failed there loses its entry.

    Which GPU that was the process says that ran the item, never a node that declares one. A variant some of whose items did
    not report, in a run that was stopped, keeps what was known of it; and so does one whose items met several versions of
    the packages, or that comes from a package elsewhere and ran on a cluster, whose nodes have that package by themselves.
    """
    gpus = {o.machine["gpu"]: o.machine["capability"] for o in outcomes if o.machine}
    told = [_record(options, items, _of(gpu, outcomes), gpu, capability) for gpu, capability in sorted(gpus.items())]
    return "\n".join(told) or "recorded: nothing, for no item ran on a GPU"


def _of(gpu: str, outcomes: list[Outcome]) -> list[Outcome]:
    """What a GPU ran, and what ended its process before that could say where it was, if it was not for another card."""
    lost = [o for o in outcomes if not o.machine and o.card in ("", file_stem(gpu))]
    return [replace(o, card="") for o in (*(o for o in outcomes if o.machine.get("gpu") == gpu), *lost)]


def _record(options: Options, items: list[Item], outcomes: list[Outcome], gpu: str, capability: str) -> str:
    written: dict[Path, dict[str, Any]] = {}
    passed, reported = 0, {o.item.id for o in outcomes}
    unknown = {(i.op, i.label) for i in items if i.id not in reported}
    met: dict[tuple[str, str], list[dict[str, str]]] = {}  # versions of packages
    for o in outcomes:
        known = met.setdefault((o.item.op, o.item.label), [])
        known += [o.machine["versions"]] if o.machine and o.machine["versions"] not in known else []
    for row in matrix.rows(outcomes):
        good, versions = _sound(row), met[row.op, row.label]
        if row.label == SPEC or row.problem or any(o.item.problem for o in row.cells.values()):
            continue
        if good and ((row.op, row.label) in unknown or len(versions) != 1):
            continue
        if options.elsewhere and not _travels(row.op, row.label):
            continue
        key = f"{row.op}/{row.label}"
        passed += good
        path = path_for(gpu, row.op, row.label)
        book = written.setdefault(path, _opened(path, gpu, capability))
        book["entries"].pop(key, None)
        if good:
            book["entries"][key] = _entry(row, options, versions[0])
    for path, book in written.items():
        _write(path, book)
    names = (str(path.relative_to(PLACE.folder)) if path == PLACE.of(gpu) else str(path) for path in written)
    return f"recorded: {passed} variants verified on {gpu} in {', '.join(names) or 'no file'}"


def _travels(op: str, label: str) -> bool:
    """Whether nodes of a cluster have the sources of a variant from here: they lie in this package."""
    backend, _, variant = label.partition("/")
    return registered.package(backend).startswith("kernelmux.") and not elsewhere.whose(op, variant)


def write(book: dict[str, Any]) -> None:
    """Put the ledger of a GPU for variants of ours in place of the one in its file."""
    _write(PLACE.of(book["gpu"]), book)


def _write(path: Path, book: dict[str, Any]) -> None:
    made = json.loads(json.dumps(book, sort_keys=True))
    if path == PLACE.of(book["gpu"]):
        entries = made.pop("entries")
        shared, rows = said_once(entries.values(), *SAID_ONCE)
        made |= shared | {"entries": dict(zip(entries, rows, strict=True))}
    path.parent.mkdir(parents=True, exist_ok=True)
    output_files.write(path, json_rows(made) + "\n")
    books.cache_clear()


def _opened(path: Path, gpu: str, capability: str) -> dict[str, Any]:
    """The ledger in a file, or a new one."""
    new = {"schema": artifacts.SCHEMA, "gpu": gpu, "capability": capability, "entries": {}}
    return _book(path) if path.exists() else new


def _sound(row: matrix.MatrixRow) -> bool:
    """Nothing failed, and something was checked: a variant that this GPU cannot run passes nothing."""
    return all(o.status != "failed" for o in row.cells.values()) and any(o.passed for o in row.cells.values())


def _entry(row: matrix.MatrixRow, options: Options, versions: dict[str, str]) -> dict[str, Any]:
    spec = catalog.spec(row.op)
    backend, _, variant = row.label.partition("/")
    return {
        "oracle": meaning.oracle(spec),
        "judge": meaning.judge(),
        "asked": "".join(digest(case.text) for case in options.cases_of(spec)),
        "source": artifacts.source_hash(backend, row.op, variant),
        "tier": options.tier,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "versions": versions,
        "passed": sum(o.passed for o in row.cells.values()),
        "budget": round(max((o.budget for o in row.cells.values()), default=0.0), 3),
    }


@lru_cache(maxsize=1)
def books() -> tuple[dict[str, Any], ...]:
    """All ledgers, one per GPU, with what packages with operators have recorded of their own implementations."""
    found = {book["gpu"]: book for book in own()}
    for package in elsewhere.listed().packages.values():
        for path in GpuFiles(package.folder / NAME).all():
            book = _book(path)
            entries = {key: entry for key, entry in book["entries"].items() if _whose(key) is package}
            known = found.get(book["gpu"], {**book, "entries": {}})
            found[book["gpu"]] = {**known, "entries": {**known["entries"], **entries}}
    return tuple(found.values())


def own() -> list[dict[str, Any]]:
    """The ledgers of our own implementations, one per GPU."""
    return [_book(path) for path in PLACE.all()]


def _whose(key: str) -> elsewhere.Package | None:
    """The package that an entry, "softmax/triton/theirs.short", is about."""
    op, _, label = key.partition("/")
    return elsewhere.whose(op, label.partition("/")[2])


def _book(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or {"gpu", "entries"} - set(found):
            raise ValueError("expected gpu and entries")
        entries = in_full(found, found["entries"].values(), *SAID_ONCE)
    except (OSError, ValueError, KeyError) as error:
        raise SpecError(f"{path}: the ledger is damaged ({error}); restore it, or record anew without it") from error
    head = {name: value for name, value in found.items() if name not in SAID_ONCE}
    return {**head, "entries": dict(zip(found["entries"], entries, strict=True))}


def changed(entry: Mapping[str, Any], op: str, backend: str, variant: str, oracle: str = "") -> tuple[str, ...]:
    """What of a variant is not as it was when it was entered: "oracle", "judge", "launches", or "unknown": its launches.

    oracle: the key of what the operator means today, from a caller that asks for many variants.
    """
    spec = catalog.spec(op)
    if "oracle" in entry:
        found = [] if entry["oracle"] == (oracle or meaning.oracle(spec)) else ["oracle"]
        found += [] if meaning.alike(entry["judge"]) else ["judge"]
    else:  # entered before there were keys: the text of its spec tells
        found = [] if entry.get("spec") == spec.hash else ["oracle"]
    source = artifacts.source_hash(backend, op, variant)
    launches = launch_keys.compared(op, backend, variant, entry["source"], source)
    found += {launch_keys.CHANGED: ["launches"], launch_keys.UNKNOWN: [UNKNOWN]}.get(launches, [])
    return tuple(found)


def standing(entry: Mapping[str, Any], op: str, backend: str, variant: str) -> str:
    """How an entry stands: VERIFIED, STALE, or UNKNOWN where --rekey has not yet seen its sources."""
    return word(changed(entry, op, backend, variant))


def word(found: tuple[str, ...]) -> str:
    """How an entry stands of which `changed` found these."""
    return UNKNOWN if found == (UNKNOWN,) else STALE if found else VERIFIED


def unasked(entry: Mapping[str, Any], op: str) -> list[str]:
    """The cases of tiers smoke and ci that the spec has got since: what was verified without them stays so."""
    asked = set(split(entry["asked"])) if "asked" in entry else set()
    cases = (case for case in catalog.spec(op).cases if case.tier in TIERS)
    return [case.text for case in cases if asked and digest(case.text) not in asked]


def status(op: str, backend: str, variant: str) -> tuple[str, tuple[str, ...]]:
    """`VERIFIED`, `UNKNOWN` or `STALE` and on which GPUs, or `NO_RECORD`."""
    entries = {b["gpu"]: b["entries"].get(f"{op}/{backend}/{variant}") for b in books()}
    known = {gpu: standing(e, op, backend, variant) for gpu, e in entries.items() if e}
    for word in (VERIFIED, UNKNOWN, STALE):
        if gpus := tuple(gpu for gpu, found in known.items() if found == word):
            return word, gpus
    return NO_RECORD, ()


def meanings() -> dict[str, str]:
    """What each mark says of a variant."""
    gpus = " or ".join(book["gpu"] for book in books()) or "a GPU"
    return {
        MARKS[VERIFIED]: f"is verified: it passed the whole suite on {gpus}, and launches and means what it did then",
        MARKS[STALE]: "has a stale record: what it launches, or what is right, has changed since it passed",
        MARKS[
            UNKNOWN
        ]: "has a record of an earlier source, and whether that launches the same is not computed (--rekey)",
        MARKS[NO_RECORD]: "is not known from a GPU: it has not run on one, or has failed",
    }


def verified(ops: Sequence[str] = (), capability: str = "") -> tuple[str, ...]:
    """Every variant that passed on a GPU as it stands, as "op/backend/variant".

    ops: of these operators alone. capability: on a GPU of this one alone, "sm_90".
    """
    alike = {b["gpu"] for b in books() if capability in ("", b.get("capability"))}
    names = (
        (op, backend, variant)
        for op in ops or catalog.usable()
        for backend in registered.backends()
        for variant in plan.known(backend, op)
    )
    found = ((name, status(*name)) for name in names)
    return tuple("/".join(name) for name, (kind, gpus) in found if kind == VERIFIED and not alike.isdisjoint(gpus))


def table(ops: Sequence[str] = ()) -> str:
    """The support matrix in Markdown, of all operators unless some are named: per backend every variant with its mark."""
    names = registered.backends()
    lines = [f"| operator | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    lines += [f"| `{op}` | {' | '.join(_cell(op, name) for name in names)} |" for op in ops or catalog.usable()]
    return "\n".join([*lines, "", "; ".join(f"{mark}: {means}" for mark, means in meanings().items())])


def _cell(op: str, backend: str) -> str:
    return ", ".join(f"{v} {MARKS[status(op, backend, v)[0]]}" for v in plan.known(backend, op)) or "-"


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
        output_files.write(path, text)
    except OSError as error:
        raise ArgumentError(f"--matrix {file}: cannot be written: {error.strerror}") from error
    return 0


def _text(path: Path, file: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ArgumentError(f"--matrix {file}: cannot be read: {reason}") from error
