"""What a run leaves behind: results (an object per line), the matrix, and durations that order the next run."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernelmux.conformance.options import Options
from kernelmux.conformance.report import not_reached, output_files
from kernelmux.conformance.session import time_budget
from kernelmux.conformance.session.execute import BY_GPU, IN_PART, NOT, WHOLE, Outcome
from kernelmux.conformance.session.plan import Item
from kernelmux.conformance.session.tested_backends import Tested
from kernelmux.conformance.session.worker_facts import versions
from kernelmux.registry import catalog
from kernelmux.registry.backend import device_tables
from kernelmux.registry.backend import lookup as registered

SCHEMA = 1
FOREVER = 1e9  # seconds
DURATIONS, LAST_FAILED = "durations.json", "last_failed.json"


def source_hash(backend: str, op: str, variant: str = "") -> str:
    """The hash of an implementation's source, "" for the rows that judge a spec."""
    return device_tables.source(backend, op, variant) if backend in registered.backends() else ""


def folder(options: Options) -> Path:
    """Where the files of a run go."""
    return Path(options.out)


def names(options: Options, whole: bool) -> tuple[str, str, str]:
    """The files of a run: of all items (of the default tier, or of another), or of a part, which never replaces those."""
    tier = "" if options.tier == Options.tier else f"-{options.tier}"
    kind = tier if whole else "-partial"
    return f"results{kind}.jsonl", f"matrix{kind}.md", f"report{kind}.html"


def write(
    options: Options,
    outcomes: list[Outcome],
    told: Tested,
    table: str,
    html: str,
    seconds: float,
    whole: bool,
    usage: Mapping[str, Any] | None = None,
) -> None:
    """Write all reports of a run into its folder; whole: every item of the suite has reported. usage: of its workers."""
    home = folder(options)
    lines = [
        _head(options, told, outcomes),
        *(line for o in outcomes for line in _lines(o)),
        *not_reached.results(outcomes),
        _summary(options, outcomes, seconds, usage),
    ]
    results, matrix, page = names(options, whole)
    output_files.write(home / results, "".join(json.dumps(line, allow_nan=True) + "\n" for line in lines))
    output_files.write(home / matrix, table)
    known = durations(home, warn=False) | {
        o.item.id: round(o.seconds, 3) for o in outcomes if o.asked in (WHOLE, IN_PART)
    }
    output_files.write(home / DURATIONS, json.dumps(known, indent=0, sort_keys=True))
    ran, now = {o.item.id for o in outcomes}, list(dict.fromkeys(o.item.id for o in outcomes if o.status == "failed"))
    output_files.write(
        home / LAST_FAILED, json.dumps([*(i for i in last_failed(home, warn=False) if i not in ran), *now], indent=0)
    )
    output_files.write(home / page, html)


def last_failed(home: Path, warn: bool = True) -> tuple[str, ...]:
    """The ids of items that failed when they last ran, () where none is known."""
    found = _known(home / LAST_FAILED, warn)
    return tuple(found) if isinstance(found, list) else ()


def durations(home: Path, warn: bool = True) -> dict[str, float]:
    """Seconds per item in earlier runs, {} where there were none."""
    found = _known(home / DURATIONS, warn)
    return {name: float(seconds) for name, seconds in found.items()} if isinstance(found, dict) else {}


def _known(path: Path, warn: bool) -> Any:
    """What an earlier run left in a file, None where there is none; a damaged one is ignored with a warning."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if _sound(path.name, found):
            return found
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        pass
    if warn:
        print(f"conformance: {path} is damaged: ignored, and written anew at the end", file=sys.stderr)
    return None


def _sound(name: str, found: Any) -> bool:
    """Whether a file of that name holds what it should: seconds by item, or a list of items."""
    if name == LAST_FAILED:
        return isinstance(found, list) and all(isinstance(one, str) for one in found)
    numbers = list(found.values()) if isinstance(found, dict) else [None]
    return all(isinstance(n, int | float) and 0 <= n < FOREVER for n in numbers)


def _head(options: Options, told: Tested, outcomes: list[Outcome]) -> dict[str, Any]:
    gpus = {json.dumps(o.machine): o.machine for o in outcomes if o.machine}
    return {
        "kind": "run",
        "schema": SCHEMA,
        "machine": str(told),
        **told.as_dict(),
        "versions": versions(),
        **({"gpus": [*gpus.values()]} if gpus else {}),
        "options": options.as_dict(),
    }


def _lines(outcome: Outcome) -> list[dict[str, Any]]:
    """An item and, under it, its trials."""
    item = outcome.item
    where: dict[str, Any] = {"op": item.op, "backend": item.backend, "variant": item.variant, "check": item.check}
    where |= {} if item.seed is None else {"seed": item.seed}
    where |= {"card": outcome.card} if outcome.card else {}
    spec = "" if item.problem and catalog.problem(item.op) else catalog.spec(item.op).hash
    hashes = {"spec": spec, "source": "" if item.problem else source_hash(item.backend, item.op, item.variant)}
    head = {
        "kind": "item",
        **where,
        **hashes,
        "status": outcome.status,
        "asked": outcome.asked,
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


def omissions(options: Options, outcomes: list[Outcome]) -> str:
    """What a run did not ask, in words: what its selection leaves out, and a limit of time; "" if there is nothing."""
    chosen = [f"only what fits -k {shlex.quote(options.keyword)}"] if options.keyword else []
    left = "" if options.ops else catalog.left_out(options.dtypes)
    return "; ".join(filter(None, (*chosen, left, _in_time(options, outcomes))))


def _in_time(options: Options, outcomes: list[Outcome]) -> str:
    """What a run did not ask that has a limit of time, or that relies on the ledger; "" for others."""
    if not (options.minutes or options.verified):
        return ""
    count = Counter(o.asked for o in outcomes)
    parts = [f"{count[WHOLE]} in full", f"{count[IN_PART]} in part"]
    parts += [f"{count[BY_GPU]} not again, as a GPU has passed them as they stand"] if count[BY_GPU] else []
    parts += [f"{count[NOT]} not for lack of time"] if count[NOT] else []
    asked = f"{len(outcomes)} items{f' within {time_budget.duration_text(options.minutes)}' if options.minutes else ''}"
    more = f"{'--minutes N asks more, ' if options.minutes else ''}--tier ci --anew everything"
    return f"{asked}: {', '.join(parts)}; {more}"


def _summary(
    options: Options, outcomes: list[Outcome], seconds: float, usage: Mapping[str, Any] | None
) -> dict[str, Any]:
    told = omissions(options, outcomes)
    asked = {"asked": told} if told else {}
    used = {"usage": usage} if usage else {}
    return {"kind": "summary", **counts(outcomes), "seconds": round(seconds, 2), **asked, **used}
