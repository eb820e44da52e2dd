"""Which variant of which backend can run an operator on a device, in which dtypes, under which conditions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

import torch

from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.description import Implementation
from kernelmux.registry.choice import requests
from kernelmux.registry.cli.target_device import TargetDevice, machine, standing
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.errors import ArgumentError, KernelmuxError
from kernelmux.registry.spec.cases import Case
from kernelmux.registry.spec.conditions import Capability, Condition, Dtypes
from kernelmux.registry.spec.op_spec import OpSpec
from kernelmux.registry.spec.signature import Call
from kernelmux.registry.util import cards, text_tables


@dataclass(frozen=True)
class Support:
    """One variant on a device.

    variant: "" for a backend of which nothing more is known. dtypes: of the leading tensor, those in which a case of the
    spec can run. conditions: what a call must meet besides, in the words of each condition. layout: per tensor that may be
    copied first, the strides that it is copied for. problem: why no call can run on this device, or why nothing is known;
    empty otherwise. emulated: its kernels run on the emulator.
    """

    operator: str
    backend: str
    variant: str = ""
    dtypes: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    layout: tuple[tuple[str, str], ...] = ()
    problem: str = ""
    emulated: bool = False

    @property
    def able(self) -> bool:
        """Whether some call can run."""
        return not self.problem


@dataclass(frozen=True)
class SupportMatrix:
    """The answer of `support_matrix`: an entry per operator, backend and variant, in ladder order.

    str() is a table of operators and backends; for one operator alone it has a line per variant, with its conditions.
    """

    device: str
    backends: tuple[str, ...]
    entries: tuple[Support, ...]

    def of(self, operator: str, backend: str) -> tuple[Support, ...]:
        """The entries of one operator in one backend; empty if it has no implementation."""
        return tuple(e for e in self.entries if (e.operator, e.backend) == (operator, backend))

    @property
    def operators(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(e.operator for e in self.entries))

    def table(self, width: int = text_tables.WIDTH) -> str:
        """The text of str() at another width."""
        return (_variants if len(self.operators) == 1 else _grid)(self, width)

    def __str__(self) -> str:
        return self.table()


def support_matrix(
    device: str | None = None, ops: str | Iterable[str] | None = None, card: str | None = None
) -> SupportMatrix:
    """What each backend can run on a device: "cpu", "cuda", a compute capability such as "sm_90", None for this machine.

    A capability needs no GPU and none of the packages that would launch on it. What cannot be imported is an entry with its
    reason. ops: one operator or several, None for all. card: a GPU by name, "rtx4090", whose limits count too; with "cpu"
    the emulator stands for it. ArgumentError for another device, UnknownName for an operator or a card that there is not.
    """
    with standing(card, "support_matrix(): card") as gpu:
        where = machine(device, "support_matrix(): device", gpu)
        chosen = catalog.usable() if ops is None else requests.operators(ops, "support_matrix(): ops")
        found = [e for op in chosen for name in registered.backends() for e in _entries(catalog.spec(op), name, where)]
        return SupportMatrix(where.name, registered.backends(), tuple(found))


def _entries(spec: OpSpec, name: str, where: TargetDevice) -> list[Support]:
    if not registered.loads(name):
        return [Support(spec.name, name, problem=str(registered.unavailable(name, where.device)))]
    if not registered.implements(name, spec.name):
        return []
    if not where.elsewhere and (reason := registered.unavailable(name, where.device)):
        return [Support(spec.name, name, problem=reason)]
    try:
        ladder = registered.variants(name, spec.name)
    except KernelmuxError as error:
        return [Support(spec.name, name, problem=str(error).removeprefix(f"{name}: "))]
    return [_support(spec, name, variant, found, where) for variant, found in ladder.items()]


def _support(spec: OpSpec, name: str, variant: str, found: Implementation, where: TargetDevice) -> Support:
    emulated = registered.emulates(name, where.device)
    capability = cards.emulated().capability if emulated else where.capability
    lacking = {dtype: _lacking(found, calls) for dtype, calls in _calls(spec.name, where.device, capability).items()}
    dtypes = tuple(SHORT[dtype] for dtype, reasons in lacking.items() if not reasons)
    return Support(
        operator=spec.name,
        backend=name,
        variant=variant,
        dtypes=dtypes,
        conditions=replace(found, requires=tuple(c for c in found.requires if not _is_said(c, spec))).wording,
        layout=tuple(sorted(found.layout.items())),
        problem="" if dtypes else _problem(found, lacking.values(), capability),
        emulated=emulated,
    )


def _is_said(condition: Condition, spec: OpSpec) -> bool:
    """Whether the device or the dtypes of an entry say it already."""
    return isinstance(condition, Capability) or (isinstance(condition, Dtypes) and condition.name == spec.leading.name)


@cache
def _calls(op: str, device: torch.device, capability: tuple[int, int] | None) -> dict[torch.dtype, tuple[Call, ...]]:
    """The cases and workloads of an operator as calls on a device, by the dtype of the leading tensor."""
    spec = catalog.spec(op)
    found: dict[torch.dtype, tuple[Call, ...]] = {}
    for dtype in spec.dtypes:
        cases = (c for c in (*spec.cases, *spec.workloads) if c.dtypes is None or dtype in c.dtypes)
        found[dtype] = tuple(call for case in cases if (call := _call(spec, case, dtype, device, capability)))
    return found


def _call(
    spec: OpSpec, case: Case, dtype: torch.dtype, device: torch.device, capability: tuple[int, int] | None
) -> Call | None:
    """A case as a call, None for one whose dtypes do not go together."""
    try:
        return spec.hypothetical(case, dtype, device, capability)
    except ArgumentError:
        return None


def _lacking(found: Implementation, calls: tuple[Call, ...]) -> str:
    """Empty if one of the calls can run, else why the last of them cannot."""
    text = "the spec has no case of this dtype"
    for call in calls:
        try:
            text = "; ".join(found.reasons(call))
        except Exception as error:  # of a condition of a plugin
            text = f"a condition fails: {type(error).__name__}: {error}"
        if not text:
            break
    return text


def _problem(found: Implementation, lacking: Iterable[str], capability: tuple[int, int] | None) -> str:
    """Why no dtype can run: the kind of GPU if that is it, else what was found last."""
    for condition in found.requires:
        if isinstance(condition, Capability) and capability and not condition.admits(capability):
            return f"needs {condition.text}"
    return "; ".join(dict.fromkeys(lacking))


def _grid(matrix: SupportMatrix, width: int) -> str:
    """A row per operator, a column per backend, and what is to be known of a backend below."""
    whole = {name: reason for name in matrix.backends if (reason := _everywhere(matrix, name))}
    columns = [name for name in matrix.backends if name not in whole]
    rows = [(op, *(_cell(matrix.of(op, name)) for name in columns)) for op in matrix.operators]
    head = f"what can run on {matrix.device}: variants in ladder order; the last that can run a call is the default"
    notes = [*(f"{name}: {reason}" for name, reason in whole.items()), *_emulated(matrix)]
    notes.append(
        "a variant without dtypes takes all that the operator has; * means conditions: ask for one operator alone"
    )
    table = text_tables.text(("operator", *columns), rows, width=width)
    told = (line for note in notes for line in text_tables.wrapped(note, width))
    return "\n".join([*text_tables.wrapped(head, width), "", table, "", *told])


def _emulated(matrix: SupportMatrix) -> list[str]:
    names = dict.fromkeys(e.backend for e in matrix.entries if e.emulated)
    return [f"{', '.join(names)}: on the emulator, when asked for by name"] if names else []


def _everywhere(matrix: SupportMatrix, name: str) -> str | None:
    """What keeps a whole backend from every operator, if one reason does."""
    found = [e for e in matrix.entries if e.backend == name]
    if not found:
        return "has none of these operators"
    reasons = {e.problem.replace(f"for {e.operator} ", "") for e in found}
    return reasons.pop() if len(reasons) == 1 and not any(e.able or e.variant for e in found) else None


def _cell(entries: tuple[Support, ...]) -> str:
    """One line per variant that can run, or why none can."""
    able = [e for e in entries if e.able]
    if not able:
        return "\n".join(dict.fromkeys(e.problem for e in entries)) or "-"
    return "\n".join(_short(e) for e in able)


def _short(entry: Support) -> str:
    everything = tuple(SHORT[dtype] for dtype in catalog.spec(entry.operator).dtypes)
    dtypes = "" if entry.dtypes == everything else f" {'/'.join(entry.dtypes)}"
    return f"{entry.variant}{'*' if entry.conditions else ''}{dtypes}"


def _variants(matrix: SupportMatrix, width: int) -> str:
    """A row per variant of one operator, with all that is known."""
    columns = ("variant", "dtypes", "conditions", LAYOUT)
    rows = [
        (
            f"{e.backend}/{e.variant}" if e.variant else e.backend,
            "/".join(e.dtypes) or "-",
            "\n".join(e.conditions) if e.able else f"cannot run: {e.problem}",
            read_in_place(e) if e.able else "",
        )
        for e in matrix.entries
    ]
    head = f"{matrix.operators[0]} on {matrix.device}; variants in ladder order"
    return "\n".join(
        [head, "", text_tables.text(columns, rows, optional={LAYOUT}, width=width), "", *_emulated(matrix)]
    ).rstrip()


LAYOUT = "copied first, unless they have"
_STRIDES = {
    "last": "unit stride in the last axis",
    "matrix": "unit stride in one of the last two axes",
    "contiguous": "the strides of a new tensor",
}


def read_in_place(entry: Support) -> str:
    """What tensors must have to be read where they are, those with the same needs in one line."""
    names: dict[str, list[str]] = {}
    for name, layout in entry.layout:
        names.setdefault(layout, []).append(name)
    return "\n".join(f"{', '.join(names[layout])}: {text}" for layout, text in _STRIDES.items() if layout in names)
