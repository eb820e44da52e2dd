"""kernelmux new op NAME --like relu: writes the files of a new operator, which run and pass the suite as they are.

They compute what --like says. What makes them the new operator is marked TODO(NAME), in a dozen places or so.
"""

from __future__ import annotations

import argparse
import keyword
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from kernelmux.registry import catalog, elsewhere
from kernelmux.registry.cli import terminal
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.scaffold import package
from kernelmux.registry.util import files

TEMPLATES = Path(__file__).parent / "templates"
TOP = Path(__file__).resolve().parents[3]  # of the checkout, if this is one
LIKE = {
    "relu": "an element of the result follows from those of the inputs at its place",
    "softmax": "an element follows from its row: reductions along an axis, then a formula",
    "matmul": "a product of two matrices, and what is done to its sums",
}
OLD = "newop"  # the operator's name in the templates
MARK = "TODO({})"
EXAMPLES = """examples:
  kernelmux new op hardswish --like relu --package our_ops
  kernelmux new op l2_normalize --like softmax --package our_ops
  kernelmux new op hardswish --like relu --dry-run
"""


class ScaffoldPlan(NamedTuple):
    """Files to be written, by path; those of the operator among them; what to do next, a line each."""

    files: dict[Path, str]
    own: tuple[Path, ...]
    steps: tuple[str, ...]


def parser() -> argparse.ArgumentParser:
    """The arguments of `kernelmux new`."""
    families = "\n".join(f"  {name:8} {text}" for name, text in LIKE.items())
    made = terminal.Parser(
        prog="kernelmux new",
        description="Write the files of a new operator: its spec and its kernels in torch, Triton and CUDA C++.\n"
        "They run, and pass the suite, as they are; TODO(NAME) marks what to fill in.",
        epilog=f"--like:\n{families}\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("what", choices=["op"], metavar="op", help="an operator")
    made.add_argument("name", metavar="NAME", help="what users will call: kernelmux.NAME")
    made.add_argument("--like", required=True, choices=LIKE, help="the family that it belongs to, below")
    made.add_argument(
        "--package",
        metavar="FOLDER",
        type=Path,
        help="a package of your own, new or with operators already (default: this checkout of kernelmux)",
    )
    made.add_argument("--dry-run", action="store_true", help="show the files, and write nothing")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 if the files are written, 2 for a wrong command, a name that is taken or files that exist."""
    options = parser().parse_args(arguments)
    return terminal.run("kernelmux new", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    check_name(options.name, in_tree=options.package is None)
    planned = plan(options.name, options.like, options.package)
    if there := [path for path in planned.own if path.exists()]:
        raise ArgumentError(
            f"{options.name}: expected none of its files, got {', '.join(map(str, there))}: nothing is written"
        )
    if not options.dry_run:
        _write(planned.files)
    root = options.package.resolve() if options.package else TOP
    told = Console(highlight=False, soft_wrap=True)
    told.print("would be written:" if options.dry_run else "written:", tree(root, planned.files))
    if not options.dry_run:
        mark = MARK.format(options.name)
        count = sum(text.count(mark) for text in planned.files.values())
        told.print(f"\n{count} places to fill in: grep -rn '{mark}' {root}\n\nnext:", markup=False)
        told.print("\n".join(f"  {step}" for step in planned.steps), markup=False)
    return terminal.OK


def _write(texts: Mapping[Path, str]) -> None:
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write(path, text)
        except OSError as error:
            raise ArgumentError(f"{path} cannot be written: {error.strerror}") from error


def check_name(name: str, in_tree: bool) -> None:
    """ArgumentError for a name that no new operator can have."""
    problem = ""
    if name in catalog.names():
        package = elsewhere.owner(name)
        problem = f"{package.package if package else 'kernelmux'} has an operator of this name"
    elif name in elsewhere._taken():
        problem = f"kernelmux.{name} means something else"
    elif not (name.isidentifier() and name.isascii() and name == name.lower()) or name.startswith("_"):
        problem = "it takes lower-case letters, digits and _, and begins with a letter"
    elif keyword.iskeyword(name) or keyword.issoftkeyword(name):
        problem = "it is a word of Python"
    elif in_tree and name in sys.stdlib_module_names:
        problem = "no module of the tree is named like one of Python"
    if problem:
        raise ArgumentError(f"NAME: expected a name for a new operator, got {name!r}: {problem}")


def plan(name: str, like: str, folder: Path | None) -> ScaffoldPlan:
    """The files of an operator, in a package at `folder` or in this checkout; ArgumentError where there is neither."""
    if folder is None:
        if not (TOP / "kernelmux/backends").is_dir() or not (TOP / "CONTRIBUTING.md").is_file():
            raise ArgumentError("expected a checkout of kernelmux, or --package FOLDER: this one is installed")
        own = _operator(name, like, TOP / "kernelmux/registry/ops", TOP / "kernelmux/backends")
        return ScaffoldPlan(own, tuple(own), _in_tree(name))
    home = package.at(folder.resolve())
    own = _operator(name, like, home.modules / elsewhere.OPS, home.modules / elsewhere.BACKENDS)
    own[home.project / f"tests/test_{name}.py"] = _filled(TEMPLATES / "package/suite.py", name)
    return ScaffoldPlan({**home.shared, **own}, tuple(own), _in_package(name, folder))


def _operator(name: str, like: str, ops: Path, backends: Path) -> dict[Path, str]:
    found = {ops / f"{name}.py": _filled(TEMPLATES / like / "spec.py", name)}
    for path in sorted((TEMPLATES / like).glob("*.*")):
        if path.stem != "spec":
            found[backends / path.stem / f"{name}{path.suffix}"] = _filled(path, name)
    return found


def _filled(path: Path, name: str) -> str:
    return path.read_text(encoding="utf-8").replace(OLD, name)


def _in_tree(name: str) -> tuple[str, ...]:
    return (
        f"nox -s conformance -- --op {name}",
        f"nox -s perf -- --op {name}",
        "nox -s docs   # its page, and its type",
        "nox           # refuses what is left to fill in",
    )


def _in_package(name: str, folder: Path) -> tuple[str, ...]:
    return (
        f"cd {shlex.quote(str(folder))}",
        "pip install -e '.[test]'",
        f"kernelmux conformance --op {name} --tier smoke",
        "python -m pytest   # the whole suite, and what is left to fill in",
    )


def tree(root: Path, paths: Iterable[Path]) -> Tree:
    """Paths below `root` as they lie in its folders."""
    nodes = {root: Tree(Text(str(root)))}
    for path in sorted(paths):
        for part in (*reversed(path.parents), path):
            if part not in nodes and part.parent in nodes:
                nodes[part] = nodes[part.parent].add(Text(part.name))
    return nodes[root]
