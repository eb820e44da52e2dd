"""What a run was asked for, in a form that travels to the worker processes as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from typing import Any

import torch

from kernelmux.conformance.inputs import command_line_cases
from kernelmux.registry import dtypes
from kernelmux.registry.cases import TIERS, Case
from kernelmux.registry.spec import OpSpec

PROGRAM = "python -m kernelmux.conformance"


@dataclass(frozen=True)
class Options:
    """A selection; an empty tuple stands for all.

    backends: "name" or "name/variant". cases: names, patterns ("x37*") or spelt out ("x=5x1025,axis=0").
    seeds: where there are several, an item for each; `seed` is then that of the item at hand. expected: files of
    expected failures beside those of the backends. program: how the command was invoked. mutants: the items are those
    of the suite's own test. verified: variants ("op/backend/variant") that passed the suite on a GPU as they stand:
    less is asked of them. impl: "path.py:function", an implementation from elsewhere of the one operator of the run.
    only: ids of items; nothing else runs. minutes: what the run may take (`time_budget`), 0 for no limit.
    saves: of a failing item the tensors are kept. pdb: a failure opens the debugger.
    verbose: a line per item is printed, and the matrix by checks; quiet: failures and the total alone. keyword: an
    expression over the ids of items, as that of pytest's -k. card: what the emulator, or the GPU, stands for. records: what
    passes goes on record. elsewhere: on the GPUs of a cluster, of which this machine need not have one. coverage: it is
    noted which branches of launchers and which basic blocks of kernels the trials run. in_process: backends of other
    packages that are imported in the processes of the run (`candidate.packages`).
    """

    ops: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    tier: str = "ci"
    seed: int = 0
    device: str = "cpu"
    out: str = "build/conformance"
    seeds: tuple[int, ...] = ()
    expected: tuple[str, ...] = ()
    program: str = PROGRAM
    mutants: bool = False
    verified: tuple[str, ...] = ()
    impl: str = ""
    only: tuple[str, ...] = ()
    minutes: float = 0.0
    saves: bool = False
    pdb: bool = False
    verbose: bool = False
    quiet: bool = False
    keyword: str = ""
    card: str = ""
    records: bool = False
    elsewhere: bool = False
    coverage: bool = False
    in_process: tuple[str, ...] = ()

    @property
    def where(self) -> torch.device:
        """The device of the tensors, with its index."""
        return torch.device("cuda", torch.cuda.current_device()) if self.device == "cuda" else torch.device("cpu")

    @property
    def complete(self) -> bool:
        """Whether every check runs on every case and dtype, so that the outcome speaks for a variant."""
        return not (self.checks or self.cases or self.dtypes or self.keyword)

    @property
    def everything(self) -> bool:
        """Whether every item of the suite runs."""
        return self.complete and not (self.ops or self.backends or self.mutants or self.only)

    def own_cases(self, spec: OpSpec) -> list[Case]:
        """Cases that were spelt out, if the operator can be called so: x=5x1025,axis=0."""
        spelt_out = (command_line_cases.case(spec, text) for text in self.cases if "=" in text)
        return [case for case in spelt_out if not command_line_cases.refusal(spec, case, self.dtypes)]

    def wants_case(self, name: str) -> bool:
        return not self.cases or any(fnmatch(name, pattern) for pattern in self.cases)

    def cases_of(self, spec: OpSpec) -> list[Case]:
        """The cases of the tier and of all smaller ones; one that is asked for comes whatever its tier."""
        if self.cases:
            return [c for c in spec.cases if self.wants_case(c.name)] + self.own_cases(spec)
        within = TIERS[: TIERS.index(self.tier) + 1]
        return [c for c in spec.cases if c.tier in within]

    def dtypes_of(self, spec: OpSpec, case: Case | None = None) -> list[torch.dtype]:
        """The dtypes of a case (or of the whole spec) that the run asks for."""
        wanted = [dtypes.parse(name) for name in self.dtypes]
        allowed = spec.dtypes if case is None or case.dtypes is None else case.dtypes
        return [d for d in allowed if not wanted or d in wanted]

    def as_dict(self) -> dict[str, Any]:
        """As JSON, for worker processes and results."""
        return asdict(self)


def from_dict(fields: Mapping[str, Any]) -> Options:
    """The options that `as_dict` took apart."""
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    return Options(**values)
