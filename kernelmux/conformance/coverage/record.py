"""The record of what tier ci leaves unrun of emulated kernels: a GPU cannot say it, so a run there reads it here.

`records/cpu/coverage.json` has a row for each variant, which counts while the variant launches what it launched then: the
lines of its kernels that no variant of the backend has run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kernelmux.conformance.coverage.findings import BLOCK, CodePart, VariantCoverage
from kernelmux.registry import catalog
from kernelmux.registry.backend import device_tables, launch_keys
from kernelmux.registry.errors import SpecError
from kernelmux.registry.util import files

FILE = files.RECORDS / "cpu/coverage.json"
SCHEMA = 1
Variant = tuple[str, str, str]  # operator, backend, name


def launch_key(op: str, backend: str, variant: str) -> str:
    """What stands for all that a variant launches for the cases of its operator; "" if that is not known (`--rekey`)."""
    row = launch_keys.known().rows.get((op, backend, device_tables.source(backend, op, variant)))
    cases = {launch_keys.digest(case.text) for case in catalog.spec(op).cases if case.tier in launch_keys.TIERS}
    keys = {item: key for item, key in row.of(variant).items() if item in cases} if row else {}  # no timed workloads
    return launch_keys.digest(json.dumps(sorted(keys.items()))) if keys else ""


def read() -> dict[Variant, dict[str, Any]]:
    """The rows of a record, none where there is no file; SpecError for one that is damaged."""
    if not FILE.exists():
        return {}
    try:
        found = json.loads(FILE.read_text(encoding="utf-8"))
        if found["schema"] != SCHEMA:
            raise ValueError(f"schema {found['schema']}, expected {SCHEMA}")
        return {(row["op"], row["backend"], row["variant"]): row for row in found["variants"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{FILE}: expected a record of coverage; {error!r}") from error


def unrun(variant: Variant) -> set[CodePart] | None:
    """Lines of a variant's kernels whose blocks no trial of tier ci runs, of any variant that was recorded with it or
    later; None where it is not on record as it stands."""
    row = read().get(variant)
    key = launch_key(*variant)
    if row is None or not key or row["key"] != key:
        return None
    return {CodePart(BLOCK, *part) for part in row["not_run"]}


def write(found: Mapping[Variant, VariantCoverage], head: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Put variants of our own into the record: how many, and those whose launches are not known, which it leaves out.

    found: what they ran, and of what they did not run what no other one did. What they ran is struck from other rows of
    their backend. head: the versions of the packages that compiled the kernels.
    """
    rows, unknown = read(), list[str]()
    run = {(backend, *_listed(p)) for (_, backend, _), one in found.items() for p in one.reached if p.kind == BLOCK}
    for (_, backend, _), row in rows.items():
        row["not_run"] = [part for part in row["not_run"] if (backend, *part) not in run]
    for variant, one in found.items():
        if key := launch_key(*variant):
            rows[variant] = _row(variant, key, one)
        else:
            unknown.append("/".join(variant))
    document = {"schema": SCHEMA, "gpu": "none, emulated", **head, "variants": [rows[v] for v in sorted(rows)]}
    files.write(FILE, f"{_lines(document)}\n")
    return len(found) - len(unknown), unknown


def _row(variant: Variant, key: str, one: VariantCoverage) -> dict[str, Any]:
    parts: Iterable[CodePart] = sorted(part for part in one.unreached if part.kind == BLOCK)
    named = dict(zip(("op", "backend", "variant"), variant, strict=True))
    return {**named, "key": key, "blocks": list(one.blocks), "not_run": [_listed(part) for part in parts]}


def _listed(part: CodePart) -> list[Any]:
    return [part.file, part.line, part.text, part.kernel, part.within]


def _lines(document: Mapping[str, Any]) -> str:
    """A line for the head, and one for each row, however long that is."""
    head = json.dumps({name: value for name, value in document.items() if name != "variants"})
    rows = ",\n".join(json.dumps(row) for row in document["variants"])
    return f'{head[:-1]}, "variants": [\n{rows}\n]}}'
