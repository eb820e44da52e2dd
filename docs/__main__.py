"""python -m kernelmux.docs: writes the generated pages, and the tables of records in the others.

docs/operators/<op>.md    a page for each operator, and README.md, their index
docs/images/speeds*.svg   well-known operators beside other libraries, for a narrow page and a wide one
docs/*.md                 the ladders between <!-- rungs op --> and <!-- /rungs -->, and other marked tables
docs/images/*_counts.svg  with --pictures: what each rung asks of memory, counted on the emulator
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kernelmux.docs import fused, index_page, ladder_pictures, libraries, operator_page, record_tables, rungs, speeds
from kernelmux.registry import catalog, files, terminal

HOME = Path(__file__).parent
PAGES = HOME / "operators"
MARKERS = ("<!-- rungs ", *(f"<!-- {name} -->" for name in ("libraries", *fused.TABLES, *record_tables.TABLES)))


def made() -> dict[Path, str]:
    """Every file that is written, with its text."""
    found = {PAGES / f"{op}.md": operator_page.page(op) for op in catalog.names()}
    found[PAGES / "README.md"] = index_page.page()
    found[HOME / "images/speeds.svg"] = speeds.picture()
    found[HOME / "images/speeds_wide.svg"] = speeds.picture(columns=2)
    for path in sorted(HOME.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if any(marker in text for marker in MARKERS):
            found[path] = libraries.filled(record_tables.filled(fused.filled(rungs.filled(text))))
    return found


def differing(wanted: dict[Path, str]) -> list[Path]:
    """Files that are not what they should be, and pages of operators that are there no more."""
    wrong = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    return [*wrong, *sorted(path for path in PAGES.glob("*.md") if path not in wanted)]


def parser() -> argparse.ArgumentParser:
    made = terminal.Parser(
        prog=terminal.program("kernelmux.docs"),
        description=(__doc__ or "").partition(": ")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--pictures", action="store_true", help="draw the counts of the ladders anew, too (a minute)")
    made.add_argument("--check", action="store_true", help="write nothing; exit status 1 if something would change")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    options = parser().parse_args(arguments)
    if lack := terminal.missing(("matplotlib",)):
        return terminal.say("docs", lack, terminal.USAGE)
    return terminal.run("docs", lambda: _run(options.check, options.pictures))


def _run(check: bool, pictures: bool) -> int:
    wanted = made() | (dict(ladder_pictures.made()) if pictures else {})
    changed = differing(wanted)
    for path in changed:
        print(f"{'differs from' if check else 'written from'} the records: {path.relative_to(HOME.parent)}")
        if not check and path in wanted:
            path.parent.mkdir(exist_ok=True)
            files.write(path, wanted[path])
        elif not check:
            path.unlink()
    if check and changed:
        return terminal.say("docs", "run `nox -s docs`, which writes these files anew", 1)
    print(f"{len(wanted)} files, {len(changed)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
