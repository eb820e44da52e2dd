"""Source lines: where an instruction comes from, and what stands there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from kernelmux.emulator.ptx.parser import Location

_LINE = re.compile(r'\s*#\s*line\s+(\d+)(?:\s+"([^"]*)")?')


_TOOLKIT = re.compile(r"/nvidia/|/cuda[\w.-]*/(?:include|targets)/|/cupy/|/triton/language/")  # headers of others


class SourceLines:
    """Attributes instructions to lines of the kernel's own file, call sites in it for what was inlined from elsewhere.

    What has no place in that file belongs to the innermost line that is not of a toolkit's header.
    """

    def __init__(self, files: Mapping[int, str], locations: Iterable[Location | None]) -> None:
        self.files = files
        outermost = Counter(files.get(_outermost(found)[0], "") for found in locations if found)
        self.file = outermost.most_common(1)[0][0] if outermost else ""

    def place(self, location: Location | None) -> tuple[str, int]:
        """File and line; line 0 of the kernel's file if there is none."""
        if location is None:
            return self.file, 0
        sites = [(self.files.get(file, ""), line) for file, line in _chain(location) if line > 0]
        own = (site for site in sites if site[0] == self.file)
        foreign = (site for site in sites if not _TOOLKIT.search(site[0]))
        return next(own, None) or next(foreign, None) or (self.file, 0)


def _chain(location: Location) -> tuple[tuple[int, int], ...]:
    """A line and its call sites, innermost first; compilers write line 0 for what belongs to several."""
    return (location.file, location.line), *location.inlined


def _outermost(location: Location) -> tuple[int, int]:
    return location.inlined[-1] if location.inlined else (location.file, location.line)


@lru_cache(maxsize=32)
def numbered(text: str | None, file: str) -> dict[int, str]:
    """The lines of `file`: those of `text` (which may hold `#line` directives), else of the file itself."""
    if text is None:
        path = Path(file)
        return dict(enumerate(path.read_text().splitlines(), 1)) if path.is_file() else {}
    lines: dict[int, str] = {}
    number, here = 1, True
    for line in text.splitlines():
        directive = _LINE.match(line)
        if directive:
            number, here = int(directive[1]), directive[2] is None or Path(directive[2]).name == Path(file).name
        else:
            if here:
                lines.setdefault(number, line)
            number += 1
    return lines
