"""Files that programs write: their names for a GPU, tables between markers in a document, and writing as a whole."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path


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
