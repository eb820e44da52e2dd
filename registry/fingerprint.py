"""Hashes of source text that say whether a record still speaks of the code at hand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def digest(sources: Iterable[str]) -> str:
    """Twelve hex digits over texts without blank and comment lines; the same under every version of Python."""
    state = hashlib.sha256()
    for source in sources:
        lines = (line.rstrip() for line in source.splitlines())
        kept = [line for line in lines if line.strip() and not line.lstrip().startswith(("# ", "//"))]
        state.update("\n".join([*kept, ""]).encode())
    return state.hexdigest()[:12]
