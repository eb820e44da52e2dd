"""Lines of the tracked files, by hand and by programs, and whether those by programs are within their limits.

python bazel/count_lines.py              this checkout, by folder; exit status 1 beyond a limit
python bazel/count_lines.py --at v0.3    a commit of git beside it, without a verdict

By programs are the files that match one of `BY_PROGRAMS`, in which * stands for any letters, "/" too. A file that is no
text in UTF-8 (a PNG) has no lines.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

BY_PROGRAMS = (
    "*.json",  # records and tables
    "*.csv",
    "*.svg",
    "*.lock",
    "docs/operators/*.md",  # pages of operators
    "*perf/results/*.md",  # reports of records, in commits that had them
    "*/__init__.pyi",  # types of the public face
    "bazel/uses.bzl",  # which operators read the source of others
)
MOST_LINES = 15_500  # by programs
MOST_SHARE = 0.10  # of all lines
SPLIT = "kernelmux"  # the folder whose folders have a row each
KINDS = ("by hand", "by programs")


def tracked(top: Path) -> Iterator[tuple[str, bytes]]:
    """The tracked files of a checkout as they lie there: path from `top`, content."""
    for name in git(top, "ls-files", "-z").decode().split("\0"):
        if name and (path := top / name).is_file():
            yield name, path.read_bytes()


def at(top: Path, revision: str) -> Iterator[tuple[str, bytes]]:
    """The files of a commit."""
    with tarfile.open(fileobj=io.BytesIO(git(top, "archive", revision))) as archive:
        for member in archive:
            if (file := archive.extractfile(member)) is not None:
                yield member.name, file.read()


def git(top: Path, *words: str) -> bytes:
    """What git prints. SystemExit with its message where it fails."""
    done = subprocess.run(["git", *words], cwd=top, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"count_lines: git {words[0]}: {done.stderr.decode().strip()}")
    return done.stdout


def counted(files: Iterable[tuple[str, bytes]]) -> Counter[tuple[str, str]]:
    """(folder, kind) -> lines."""
    lines: Counter[tuple[str, str]] = Counter()
    for name, content in files:
        lines[folder(name), KINDS[any(fnmatchcase(name, pattern) for pattern in BY_PROGRAMS)]] += length(content)
    return lines


def folder(name: str) -> str:
    """The row of a file: its first folder, of the package its second one too."""
    first, *rest = name.split("/")
    if not rest:
        return "."
    return f"{first}/{rest[0]}" if first == SPLIT and len(rest) > 1 else first


def length(content: bytes) -> int:
    """Lines of a text; 0 for what is no text."""
    try:
        return len(content.decode().splitlines())
    except UnicodeDecodeError:
        return 0


def table(lines: Counter[tuple[str, str]]) -> str:
    """A row for each folder, and their sum."""
    found = {name: [lines[name, kind] for kind in KINDS] for name in sorted({name for name, _ in lines})}
    found["all"] = [total(lines, kind) for kind in KINDS]
    wide = max(map(len, found))
    rows = [f"{name:<{wide}} {hand:>12,} {programs:>12,}" for name, (hand, programs) in found.items()]
    return "\n".join([f"{'lines in':<{wide}} {KINDS[0]:>12} {KINDS[1]:>12}", *rows])


def total(lines: Counter[tuple[str, str]], kind: str) -> int:
    """The lines of a kind."""
    return sum(count for (_, of), count in lines.items() if of == kind)


def verdict(lines: Counter[tuple[str, str]]) -> tuple[str, bool]:
    """What there is by programs beside the limits, and whether it is within both."""
    made, share = total(lines, KINDS[1]), total(lines, KINDS[1]) / max(lines.total(), 1)
    told = f"by programs: {made:,} lines (at most {MOST_LINES:,}), {share:.1%} of all (at most {MOST_SHARE:.0%})"
    return told, made <= MOST_LINES and share <= MOST_SHARE


def main(words: list[str] | None = None, top: Path = Path(__file__).parents[1]) -> int:
    """Print the table and return the exit status."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--at", metavar="REVISION", help="count a commit too: a tag, a branch or a hash")
    options = made.parse_args(words)
    lines = counted(tracked(top))
    told, within = verdict(lines)
    print(f"{table(lines)}\n\n{told}")
    if options.at is None:
        return 0 if within else 1
    other = counted(at(top, options.at))
    print(f"\n{options.at}:\n{table(other)}\n\n{verdict(other)[0]}")
    changes = ", ".join(f"{kind} {total(lines, kind) - total(other, kind):+,}" for kind in KINDS)
    print(f"since then: {changes}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
