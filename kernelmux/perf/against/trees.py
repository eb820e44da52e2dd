"""The two trees: the one this harness belongs to, and that of a revision or in another folder."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kernelmux import perf
from kernelmux.registry.errors import ArgumentError

ROOTS = (".", ".pyroot")  # of a tree: what PYTHONPATH is set to; the second in trees before kernelmux/ was a folder
EXPECTED = "a revision (commit, branch or tag), or the folder of another checkout"


@dataclass(frozen=True)
class Tree:
    """A checkout. name: for a reader."""

    name: str
    folder: Path

    @property
    def root(self) -> Path:
        """The folder from which Python imports it."""
        return next(root for root in _roots(self.folder) if is_import_root(root))


def here() -> Tree:
    """The tree that this module belongs to, as it stands; ArgumentError where that is no checkout."""
    folder = Path(perf.__file__).resolve().parents[2]
    if not _is_tree(folder):
        raise ArgumentError(f"--against: needs a checkout of kernelmux; this one is installed in {folder}")
    tracked = (folder / ".git").exists() and shutil.which("git")
    found = _git(folder, "describe", "--always", "--dirty", "--exclude=*") if tracked else None
    at = f" at {found.stdout.strip()}" if found and found.returncode == 0 else ""
    return Tree(f"this tree{at}", folder)


@contextmanager
def opened(given: str, beside: Tree) -> Iterator[Tree]:
    """The tree of a revision of `beside`, in a temporary folder that goes again, or that of a folder as it stands."""
    folder = Path(given)
    if given and _is_tree(folder):
        yield Tree(given, folder.resolve())
        return
    commit = _commit(given, beside.folder)
    with tempfile.TemporaryDirectory(prefix="kernelmux-against-", ignore_cleanup_errors=True) as temporary:
        made = Path(temporary).resolve() / "tree"
        try:
            _add(beside.folder, made, commit)
            if not _is_tree(made):
                raise ArgumentError(
                    f"--against: {given} ({commit[:12]}) has no folder kernelmux: it cannot be imported"
                )
            yield Tree(f"{given} ({commit[:12]})", made)
        finally:
            _git(beside.folder, "worktree", "remove", "--force", "--force", str(made))


def _is_tree(folder: Path) -> bool:
    return any(is_import_root(root) for root in _roots(folder))


def _roots(folder: Path) -> Iterator[Path]:
    yield from (folder / root for root in ROOTS)


def is_import_root(root: Path) -> bool:
    """Whether `import kernelmux` finds the package here."""
    return (root / "kernelmux" / "__init__.py").is_file()


def _commit(given: str, top: Path) -> str:
    """The hash of a revision; ArgumentError if there is none of that name, or no repository."""
    if not (top / ".git").exists():
        raise ArgumentError(f"--against: {top} is no git checkout, so {given!r} must be the folder of another checkout")
    found = _git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{given}^{{commit}}")
    if found.returncode:
        told = f" ({found.stderr.strip()})" if found.stderr.strip() else ""
        none = f"{top} has no revision {given!r}{told}, and there is no such folder"
        raise ArgumentError(f"--against: expected {EXPECTED}; {none}")
    return found.stdout.strip()


def _add(top: Path, made: Path, commit: str) -> None:
    added = _git(top, "-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", "--quiet", str(made), commit)
    if added.returncode:
        raise ArgumentError(f"--against: git could not make a work tree of {commit[:12]}: {added.stderr.strip()}")


def _git(top: Path, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["git", "-C", str(top), *words], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ArgumentError("--against: a revision needs git, which is not installed; expected " + EXPECTED) from error
