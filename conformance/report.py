"""What a run leaves behind: results.jsonl (an object per line), matrix.md, and durations that order the next run."""

from __future__ import annotations

import importlib.util
import json
import platform
from dataclasses import asdict
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from kernelmux.conformance.execute import Outcome
from kernelmux.conformance.options import Options
from kernelmux.conformance.plugin import durations
from kernelmux.registry import backend as registered
from kernelmux.registry import catalog

SCHEMA = 1
PACKAGES = ("torch", "triton", "cupy", "cupy-cuda13x", "numpy", "nvidia-cuda-nvrtc")


def machine(options: Options) -> str:
    """Where the kernels ran, in words."""
    return torch.cuda.get_device_name(options.where) if options.device == "cuda" else "emulated on the CPU"


def versions() -> dict[str, str]:
    """Versions of what is installed of the packages that matter."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        if importlib.util.find_spec(name.split("-")[0]) is not None or name.startswith("nvidia"):
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
    return found


@cache
def source_hash(backend: str, op: str) -> str:
    """The hash of an implementation's source, "" for the rows that judge a spec."""
    return registered.source_hash(backend, op) if backend in registered.backends() else ""


def write(options: Options, outcomes: list[Outcome], table: str, seconds: float) -> Path:
    """Write all reports of a run into its folder."""
    folder = Path(options.out)
    lines = [_head(options), *(line for o in outcomes for line in _lines(o)), _summary(outcomes, seconds)]
    path = folder / "results.jsonl"
    path.write_text("".join(json.dumps(line, allow_nan=True) + "\n" for line in lines))
    (folder / "matrix.md").write_text(table)
    known = durations(folder) | {o.item.id: round(o.seconds, 3) for o in outcomes}
    (folder / "durations.json").write_text(json.dumps(known, indent=0, sort_keys=True))
    return path


def _head(options: Options) -> dict[str, Any]:
    return {
        "kind": "run",
        "schema": SCHEMA,
        "machine": machine(options),
        "versions": versions(),
        "options": asdict(options),
    }


def _lines(outcome: Outcome) -> list[dict[str, Any]]:
    """An item and, under it, its trials."""
    item = outcome.item
    where = {"op": item.op, "backend": item.backend, "variant": item.variant, "check": item.check}
    hashes = {"spec": catalog.spec(item.op).hash, "source": "" if item.problem else source_hash(item.backend, item.op)}
    head = {
        "kind": "item",
        **where,
        **hashes,
        "status": outcome.status,
        "seconds": round(outcome.seconds, 4),
        "budget": outcome.budget,
    }
    return [{**head, "text": outcome.text}, *({"kind": "trial", **where, **asdict(r)} for r in outcome.records)]


def counts(outcomes: list[Outcome]) -> dict[str, int]:
    """Items by status; an expected failure counts as skipped."""
    status = ["skipped" if o.status == "expected" else o.status for o in outcomes]
    return {name: status.count(name) for name in ("passed", "failed", "skipped")}


def _summary(outcomes: list[Outcome], seconds: float) -> dict[str, Any]:
    return {"kind": "summary", **counts(outcomes), "seconds": round(seconds, 2)}
