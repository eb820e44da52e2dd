"""Files that programs write: names, tables between markers in a document, records a row per line, writing as a whole."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

_LONGEST_ROW = 2000  # characters


def file_stem(gpu: str) -> str:
    """The name of a GPU as that of a file: "NVIDIA H200" is nvidia_h200."""
    return re.sub(r"[^a-z0-9]+", "_", gpu.lower()).strip("_")


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
