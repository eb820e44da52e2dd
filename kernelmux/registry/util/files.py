"""Files that programs write: names, tables between markers in a document, records a row per line, writing as a whole.

Records that ship lie in `RECORDS`, a folder for each GPU, in which each kind of record has a file.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmux.registry.util.fingerprint import digest

RECORDS = Path(__file__).parents[2] / "records"

_LONGEST_ROW = 2000  # characters


def file_stem(gpu: str) -> str:
    """The name of a GPU as that of a file: "NVIDIA H200" is nvidia_h200."""
    return re.sub(r"[^a-z0-9]+", "_", gpu.lower()).strip("_")


@dataclass(frozen=True)
class GpuFiles:
    """The files of one kind of record, one for each GPU.

    folder: with a file "nvidia_h200.json". name: if there is one, each GPU has a folder in it, "nvidia_h200", and the file
    there has this name.
    """

    folder: Path
    name: str = ""

    def of(self, gpu: str) -> Path:
        """The file of a GPU by its name, "NVIDIA H200"; it may not exist."""
        return self.folder / file_stem(gpu) / self.name if self.name else self.folder / f"{file_stem(gpu)}.json"

    def all(self) -> list[Path]:
        """Those that exist, in the order of the GPUs' names."""
        return sorted(self.folder.glob(f"*/{self.name}" if self.name else "*.json"))


def said_once(rows: Iterable[Mapping[str, Any]], *fields: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What rows share, and the rows: these fields have short names for their values; the first part, by field and name, has
    the values.

    A field that a row lacks, or that is empty, stays so. `in_full` is the inverse.
    """
    values: dict[str, Any] = {field: {} for field in fields}
    made = []
    for row in rows:
        names = {field: digest([json.dumps(row[field], sort_keys=True)])[:6] for field in fields if row.get(field)}
        for field, name in names.items():
            values[field][name] = row[field]
        made.append({**row, **names})
    return values, made


def in_full(values: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], *fields: str) -> list[dict[str, Any]]:
    """Rows of `said_once` with their values. KeyError for a name without a value; rows that have values keep them."""
    short = [(field, values[field]) for field in fields if field in values]
    return [{**row, **{field: of[row[field]] for field, of in short if row.get(field)}} for row in rows]


def columns(rows: Iterable[Mapping[str, Any]], names: Iterable[str]) -> dict[str, Any]:
    """Objects as a table: the names of the columns, and of each row a list of its values, without None at its end.

    `rows_of` is the inverse.
    """
    names, table = list(names), []
    for row in rows:
        values = [row.get(name) for name in names]
        while values and values[-1] is None:
            values.pop()
        table.append(values)
    return {"columns": names, "rows": table}


def rows_of(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a table as objects, without fields that are None; ValueError for a row longer than the columns."""
    names = table["columns"]
    if any(len(row) > len(names) for row in table["rows"]):
        raise ValueError(f"expected rows of at most {len(names)} columns")
    return [{name: x for name, x in zip(names, row, strict=False) if x is not None} for row in table["rows"]]


def between(text: str, begin: str, end: str, content: str) -> str:
    """A document with new content between two markers; ValueError if it does not have them in this order."""
    before, opened, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (opened and closed):
        raise ValueError(f"expected {begin} ... {end}")
    return f"{before}{begin}\n{content}\n{end}{after}"


def json_rows(document: Any, margin: str = "") -> str:
    """A document as JSON in which a row has one line, so that a changed row is a changed line.

    A row is an object of plain values and of lists or objects of these, up to 2000 characters; or a list of plain values.
    """
    if not isinstance(document, dict | list) or not document or _is_row(document):
        return json.dumps(document)
    inner = f"{margin} "
    if isinstance(document, dict):
        parts = [f"{json.dumps(name)}: {json_rows(value, inner)}" for name, value in document.items()]
        return "{\n" + ",\n".join(inner + part for part in parts) + f"\n{margin}}}"
    return "[\n" + ",\n".join(inner + json_rows(value, inner) for value in document) + f"\n{margin}]"


def _is_row(value: dict[str, Any] | list[Any]) -> bool:
    inside = [x for x in _members(value) if isinstance(x, dict | list)]
    if isinstance(value, list) or len(inside) == len(value):
        return not inside
    flat = not any(isinstance(y, dict | list) for x in inside for y in _members(x))
    return flat and len(json.dumps(value)) <= _LONGEST_ROW


def _members(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def write(path: Path, content: str | bytes) -> None:
    """Write a file: readers see all of the old content or all of the new. OSError as for any write.

    A link of that name is replaced; the file that it points to stays as it is.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """The permissions that the process takes from new files; it can be read only by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
