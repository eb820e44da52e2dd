"""Whose code a part is: of one operator, or of a backend, where several operators share a helper or a kernel."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path, PurePosixPath

from kernelmux.conformance.coverage.findings import BRANCH, CodePart
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.util.fingerprint import HEADERS, sources


def owner(op: str, backend: str, part: CodePart) -> str:
    """ "softmax, cuda" for code of the operator whose calls were noted, "cuda" for code that others have in common with it.

    A branch is the operator's in a file that no other operator of the backend reads. A kernel is, unless another operator
    or a helper of several defines it in Python; headers are compiled into each kernel anew.
    """
    path = PurePosixPath(part.within.rpartition(":")[0] or part.file)
    whose = _named(path)
    own = whose == op
    if part.kind == BRANCH:
        own = own and _readers(registered.folder(backend), registered.package(backend)).get(part.file, {op}) <= {op}
    elif not whose:
        own = path.suffix != ".py"
    return f"{op}, {backend}" if own else backend


def _named(path: PurePosixPath) -> str:
    """The operator that a file belongs to, by the name of its folder or its own: matmul of `matmul_wgmma.cu`; or ""."""
    if path.parts[:1] == (HEADERS,):
        return ""
    stem = path.parts[0].partition(".")[0] if path.parts else ""
    return max((op for op in catalog.names() if f"{stem}_".startswith(f"{op}_")), key=len, default="")


@lru_cache(maxsize=16)
def _readers(home: Path | None, package: str) -> dict[str, set[str]]:
    """By file of a package, from its folder on: the operators whose modules consist of it, or use it."""
    found: dict[str, set[str]] = {}
    if home is None:
        return found
    for op in catalog.names():
        for path in sources(home, package, op):
            found.setdefault(path.relative_to(home).as_posix(), set()).add(op)
    return found
