"""Which changes there are, and which are drawn: the same for the same seed, sources and choice of variants."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmux.conformance.source_constants import reader
from kernelmux.conformance.source_constants.python_files import Reached
from kernelmux.judge.mutation import added_paths, cuda_changes, python_changes
from kernelmux.judge.mutation.change import KINDS, TextChange, from_dict
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.errors import ArgumentError, unknown

OWN = ("torch_ref", "triton", "cuda")  # the backends of this project
APART = ("_launch",)  # folders of what hands a kernel to a device: no part of any kernel
HEADER = 0.5  # weight of a change in a header, beside one in a source


@dataclass(frozen=True)
class MutatedKernel:
    """A variant with a change. number: of the mutant in its run; attempt: how many before it were thrown away."""

    number: int
    attempt: int
    op: str
    backend: str
    variant: str
    change: TextChange

    @property
    def label(self) -> str:
        return f"{self.op}[{self.backend}/{self.variant}]"

    @property
    def id(self) -> str:
        return f"{self.number}.{self.attempt}"

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "change": self.change.as_dict()}


def kernel_from_dict(fields: dict[str, Any]) -> MutatedKernel:
    """The mutant that `as_dict` took apart."""
    return MutatedKernel(**{**fields, "change": from_dict(fields["change"])})


def variants(ops: Sequence[str], backends: Sequence[str]) -> list[tuple[str, str, str]]:
    """Operator, backend and variant of all kernels to choose from; UnknownName or ArgumentError for wrong names."""
    for op in ops:
        catalog.spec(op)
    for name in backends:
        if name not in OWN:
            raise unknown("backend", name, OWN, "--backend")
    chosen = [(op, b, v) for b in backends or OWN for op in ops or catalog.names() for v in registered.variants(b, op)]
    if not chosen:
        raise ArgumentError("--mutate: none of these backends has a kernel for these operators")
    return chosen


class Population:
    """The changes of the variants to choose from; those of one are looked for when it is drawn first."""

    def __init__(self, ops: Sequence[str], backends: Sequence[str], seed: int) -> None:
        self.variants, self.seed = variants(ops, backends), seed
        self._changes: dict[tuple[str, str, str], dict[str, list[TextChange]]] = {}

    def draw(self, number: int, attempt: int) -> MutatedKernel:
        """The mutant of a number, after so many that were thrown away: a variant, a kind that it has, a change."""
        draws = random.Random(f"{self.seed}/{number}/{attempt}")
        while True:
            op, backend, variant = draws.choice(self.variants)
            kinds = self.changes(op, backend, variant)
            if kinds:
                found = kinds[draws.choice(sorted(kinds))]
                change = draws.choices(found, [c.weight for c in found])[0]
                return MutatedKernel(number, attempt, op, backend, variant, change)

    def changes(self, op: str, backend: str, variant: str) -> dict[str, list[TextChange]]:
        """The changes of a variant by their kinds."""
        key = op, backend, variant
        if key not in self._changes:
            found: dict[str, dict[tuple[Any, ...], TextChange]] = {}
            for change in changes(op, backend, variant):
                found.setdefault(change.kind, {}).setdefault((change.file, change.edits), change)
            self._changes[key] = {kind: list(found[kind].values()) for kind in KINDS if kind in found}
        return self._changes[key]


def changes(op: str, backend: str, variant: str) -> Iterator[TextChange]:
    """Every change of a variant: of the Python that it reaches inside of its backend, and of its CUDA C++."""
    home = registered.folder(backend)
    if home is None:
        raise ArgumentError(f"--mutate: the files of {backend} cannot be found")
    reached, texts = reader.sources(registered.variants(backend, op)[variant].fn, home)
    for one in reached:
        if not one.file.path.is_relative_to(home):
            continue
        name = one.file.path.relative_to(home).as_posix()
        if not name.startswith(APART) and isinstance(one.node, ast.FunctionDef | ast.ClassDef):
            yield from python_changes.changes(one, name, _weight(one))
            yield from added_paths.changes(one, name)
    files = {text.path: text.text for text, _ in texts if text.first == 1}
    named = [(p.relative_to(home).as_posix(), text, p.suffix == ".cu") for p, text in files.items() if _own(p, home)]
    for name, text, block in cuda_changes.used(named):
        yield from cuda_changes.changes(name, text, block, 1.0 if name.endswith(".cu") else HEADER)


def _own(path: Path, home: Path) -> bool:
    return path.is_relative_to(home) and path.suffix in (".cu", ".cuh")


def _weight(one: Reached) -> float:
    """A kernel counts as its own; a launcher's helper the less, the further away it is."""
    decorators = [ast.unparse(d) for d in getattr(one.node, "decorator_list", ())]
    return 1.0 if any("jit" in d for d in decorators) else 0.5 ** max(one.distance - 1, 0)
