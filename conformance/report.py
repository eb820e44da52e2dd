"""What a run leaves behind: results (an object per line), the matrix, and durations that order the next run."""

from __future__ import annotations

import importlib.util
import json
import platform
import sys
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch

from kernelmux.conformance import files
from kernelmux.conformance.execute import Outcome
from kernelmux.conformance.options import Options
from kernelmux.conformance.plan import Item
from kernelmux.registry import backend as registered
from kernelmux.registry import catalog
from kernelmux.registry.packages import version

SCHEMA = 1
DURATIONS, LAST_FAILED = "durations.json", "last_failed.json"
PACKAGES = ("torch", "triton", "cupy", "cupy-cuda13x", "numpy", "nvidia-cuda-nvrtc")


def machine(options: Options, ran: set[str] | None = None) -> str:
    """Where the kernels ran, in words; ran: the backends that did, where that is known."""
    if options.device == "cuda":
        return torch.cuda.get_device_name(options.where)
    return "emulated on the CPU" if ran is None or any(map(_emulates, ran)) else "on the CPU"


def _emulates(backend: str) -> bool:
    return backend in registered.backends() and registered.backend(backend).emulates


def versions() -> dict[str, str]:
    """Versions of what is installed of the packages that matter."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        if importlib.util.find_spec(name.split("-")[0]) is not None or name.startswith("nvidia"):
            found[name] = version(name)
    return {name: told for name, told in found.items() if told}


@cache
def source_hash(backend: str, op: str) -> str:
    """The hash of an implementation's source, "" for the rows that judge a spec."""
    return registered.source_hash(backend, op) if backend in registered.backends() else ""


def folder(options: Options) -> Path:
    """Where the files of a run go."""
    return Path(options.out)


def names(options: Options, whole: bool) -> tuple[str, str, str]:
    """The files of a run: of all items (of the default tier, or of another), or of a part, which never replaces those."""
    tier = "" if options.tier == Options.tier else f"-{options.tier}"
    kind = tier if whole else "-partial"
    return f"results{kind}.jsonl", f"matrix{kind}.md", f"report{kind}.html"


def write(options: Options, outcomes: list[Outcome], table: str, html: str, seconds: float, whole: bool) -> Path:
    """Write all reports of a run into its folder; whole: every item of the suite has reported."""
    home = folder(options)
    lines = [_head(options, outcomes), *(line for o in outcomes for line in _lines(o)), _summary(outcomes, seconds)]
    results, matrix, page = names(options, whole)
    files.write(home / results, "".join(json.dumps(line, allow_nan=True) + "\n" for line in lines))
    files.write(home / matrix, table)
    known = durations(home, warn=False) | {o.item.id: round(o.seconds, 3) for o in outcomes}
    files.write(home / DURATIONS, json.dumps(known, indent=0, sort_keys=True))
    ran, now = {o.item.id for o in outcomes}, [o.item.id for o in outcomes if o.status == "failed"]
    files.write(home / LAST_FAILED, json.dumps([*(i for i in last_failed(home) if i not in ran), *now], indent=0))
    files.write(home / page, html)
    return home / results


def last_failed(home: Path) -> tuple[str, ...]:
    """The ids of items that failed when they last ran, () where none is known."""
    try:
        return tuple(map(str, json.loads((home / LAST_FAILED).read_text(encoding="utf-8"))))
    except (OSError, ValueError, TypeError):
        return ()


def durations(home: Path, warn: bool = True) -> dict[str, float]:
    """Seconds per item in earlier runs, {} where there were none; a damaged file is ignored with a warning."""
    path = home / DURATIONS
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): float(seconds) for name, seconds in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError):
        if warn:
            print(f"conformance: {path} is damaged: ignored, and written anew at the end", file=sys.stderr)
        return {}


def _head(options: Options, outcomes: list[Outcome]) -> dict[str, Any]:
    return {
        "kind": "run",
        "schema": SCHEMA,
        "machine": machine(options, {o.item.backend for o in outcomes if not o.item.problem}),
        "versions": versions(),
        "options": asdict(options),
    }


def _lines(outcome: Outcome) -> list[dict[str, Any]]:
    """An item and, under it, its trials."""
    item = outcome.item
    where: dict[str, Any] = {"op": item.op, "backend": item.backend, "variant": item.variant, "check": item.check}
    where |= {} if item.seed is None else {"seed": item.seed}
    hashes = {"spec": catalog.spec(item.op).hash, "source": "" if item.problem else source_hash(item.backend, item.op)}
    head = {
        "kind": "item",
        **where,
        **hashes,
        "status": outcome.status,
        "seconds": round(outcome.seconds, 4),
        "budget": outcome.budget,
        **_declared(item),
    }
    return [{**head, "text": outcome.text}, *({"kind": "trial", **where, **asdict(r)} for r in outcome.records)]


def _declared(item: Item) -> dict[str, str]:
    """What the variant rounds beside what the spec allows, where it does: its bound is looser by that."""
    if item.problem or not item.variant or item.backend not in registered.backends():
        return {}
    found = registered.variants(item.backend, item.op).get(item.variant)
    return {"declared": found.declared} if found and found.declared else {}


def counts(outcomes: list[Outcome]) -> dict[str, int]:
    """Items by status; an expected failure counts as skipped."""
    status = ["skipped" if o.status == "expected" else o.status for o in outcomes]
    return {name: status.count(name) for name in ("passed", "failed", "skipped")}


def _summary(outcomes: list[Outcome], seconds: float) -> dict[str, Any]:
    return {"kind": "summary", **counts(outcomes), "seconds": round(seconds, 2)}
