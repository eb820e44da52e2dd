"""Files of the repository that programs write: their names for a GPU, and tables between markers in a document."""

from __future__ import annotations

import re


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
