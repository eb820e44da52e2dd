"""python -m kernelmux.docs: writes the generated pages, and the tables of records in the others.

docs/operators/<op>.md    a page for each operator, and README.md, their index
docs/images/speeds*.svg   well-known operators beside other libraries, for a narrow page and a wide one
docs/images/curves/*.svg  recorded sweeps that pages show
docs/*.md                 the ladders between <!-- rungs op --> and <!-- /rungs -->, and other marked tables
README.md                 what is known of each card, between <!-- cards --> and <!-- /cards -->
bazel/uses.bzl            which operators read the source of others, for the BUILD files
docs/images/*.svg         with --pictures: what each rung asks of memory, counted on the emulator; the roofline of each GPU
<drawn>/                  with --drawn: pages of all recorded rows of each GPU with their roofline, and all other curves
<out>/<op>.md             with --package: the pages of the operators of a package, and nothing else
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kernelmux.docs import (
    HOME,
    bazel_uses,
    cards,
    curve_pictures,
    example_tables,
    index_page,
    ladder_pictures,
    ladder_tables,
    libraries,
    operator_page,
    record_pages,
    record_tables,
    speeds,
)
from kernelmux.registry import elsewhere
from kernelmux.registry.cli import terminal
from kernelmux.registry.elsewhere import Package
from kernelmux.registry.errors import ArgumentError, unknown
from kernelmux.registry.util import files

PAGES = HOME / "operators"
MARKERS = (
    "<!-- rungs ",
    *(f"<!-- {name} -->" for name in ("libraries", *example_tables.TABLES, *record_tables.TABLES)),
)


def written_files() -> dict[Path, str]:
    """Every file that is written, with its text."""
    found = {PAGES / f"{op}.md": operator_page.page(op) for op in elsewhere.own()}
    found[PAGES / "README.md"] = index_page.page()
    found[HOME / "images/speeds.svg"] = speeds.picture()
    found[HOME / "images/speeds_wide.svg"] = speeds.picture(columns=2)
    found |= curve_pictures.drawn(HOME / curve_pictures.SHOWN, shown=True)
    for path in sorted(HOME.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if any(marker in text for marker in MARKERS):
            found[path] = libraries.filled(record_tables.filled(example_tables.filled(ladder_tables.filled(text))))
    readme = HOME.parent / "README.md"
    if readme.is_file() and cards.BEGIN in (text := readme.read_text(encoding="utf-8")):
        found[readme] = cards.filled(text)
    if (uses := readme.with_name("bazel") / "uses.bzl").is_file():
        found[uses] = bazel_uses.text(readme.parent)
    return found


def differing(wanted: dict[Path, str]) -> list[Path]:
    """Files that are not what they should be, and pages of operators and curves that are there no more."""
    wrong = [path for path, text in wanted.items() if _differs(path, text)]
    kept = (*PAGES.glob("*.md"), *(HOME / curve_pictures.SHOWN).glob("*.svg"))
    return [*wrong, *sorted(path for path in kept if path not in wanted)]


def _differs(path: Path, text: str) -> bool:
    return not path.exists() or path.read_text(encoding="utf-8") != text


def parser() -> argparse.ArgumentParser:
    made = terminal.Parser(
        prog=terminal.program("kernelmux.docs"),
        description=(__doc__ or "").partition(": ")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--pictures", action="store_true", help="draw counts of ladders and rooflines anew, too (a minute)"
    )
    made.add_argument("--check", action="store_true", help="write nothing; exit status 1 if something would change")
    made.add_argument("--drawn", metavar="FOLDER", help="also write pages of all recorded rows there (build/docs)")
    made.add_argument("--package", metavar="NAME", help="a package with operators, by the name of its entry point")
    made.add_argument("--out", metavar="FOLDER", help="for the pages of --package (default: docs/operators here)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    options = parser().parse_args(arguments)
    if lack := terminal.missing(("matplotlib",)):
        return terminal.say("docs", lack, terminal.USAGE)
    if options.package is None and options.out is None:
        return terminal.run("docs", lambda: _run(options.check, options.pictures, options.drawn))
    return terminal.run("docs", lambda: _of_package(options))


def _of_package(options: argparse.Namespace) -> int:
    """Write, or check, the pages of the operators of a package."""
    if options.package is None or options.pictures or options.drawn:
        raise ArgumentError("--out and --package stand together, without --pictures and --drawn")
    package, out = _package(options.package), Path(options.out or "docs/operators")
    own = (op for op in package.operators if elsewhere.owner(op) is package)
    wanted = {out / f"{op}.md": operator_page.page(op) for op in own}
    changed = [path for path in wanted if _differs(path, wanted[path])]
    return _written(wanted, changed, options.check, Path(), f"kernelmux docs --package {package.name} --out {out}")


def _package(name: str) -> Package:
    """A package with operators by its entry point; UnknownName, or what is wrong with it."""
    found = elsewhere.listed()
    if name in found.wrong:
        raise ArgumentError(f"--package: {found.wrong[name]}")
    if name not in found.packages:
        raise unknown("package with operators", name, found.packages, "--package")
    return found.packages[name]


def _run(check: bool, pictures: bool, drawn: str | None) -> int:
    wanted = written_files() | (dict((*ladder_pictures.all_pictures(), *record_pages.rooflines())) if pictures else {})
    if drawn and not check:
        for path in record_pages.draw(Path(drawn)):
            print(f"drawn from the records: {path}")
        others = curve_pictures.drawn(Path(drawn) / "curves", shown=False)
        _written(others, [path for path in others if _differs(path, others[path])], False, HOME.parent, "nox -s docs")
    return _written(wanted, differing(wanted), check, HOME.parent, "nox -s docs")


def _written(wanted: dict[Path, str], changed: list[Path], check: bool, top: Path, command: str) -> int:
    """Write what has changed, or say what has: paths as they are seen from the folder `top`, and what writes them."""
    for path in changed:
        shown = path.relative_to(top) if path.is_relative_to(top) else path
        print(f"{'differs from' if check else 'written from'} the records: {shown}")
        if not check and path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write(path, wanted[path])
        elif not check:
            path.unlink()
    if check and changed:
        return terminal.say("docs", f"run `{command}`, which writes these files anew", 1)
    print(f"{len(wanted)} files, {len(changed)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
