"""The rows of a run: operator x workload x dtype x variant, from the registry alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatch

import torch

from kernelmux.perf import peers
from kernelmux.perf.planning import memory_fit
from kernelmux.perf.record import history
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.rows.row_result import Contestant
from kernelmux.registry import catalog, dtypes
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.cases import Case
from kernelmux.registry.errors import ArgumentError, KernelmuxError, unknown
from kernelmux.registry.spec import Call, OpSpec

LARGE = "large"
BASELINE, PLAIN = "torch_ref", "plain"  # of the baseline, the variant that a user of torch would write
# fp16 and bf16 move the same bytes and meet the same units: one of them is enough unless --dtype asks.
USUAL = (torch.bfloat16, torch.float32)
QUICK = (torch.bfloat16,)


@dataclass(frozen=True)
class Row(Contestant):
    """One thing to time. problem: why it cannot run here, else ""; broken: the problem is a defect, not a condition. pays:
    a call that names no variant may be given to it."""

    problem: str = ""
    broken: bool = False
    pays: bool = True


def rows(options: PerfOptions) -> list[Row]:
    """All rows, group by group, the baseline first and every ladder in its order; KernelmuxError for unknown names."""
    if options.peers:
        peers.join()
    check_names(options)
    rows = []
    for op in options.ops or catalog.usable():
        spec = catalog.spec(op)
        for case in workloads(spec, options):
            for dtype in _dtypes(spec, case, options):
                rows += list(of_group(spec, case, dtype, options))
    if not rows:
        given = ", ".join(f"--{k} {' '.join(v)}" for k, v in _named(options).items() if v)
        raise ArgumentError(f"no workload fits {given or 'this selection'}; expected {FORMS} (--list names all rows)")
    return rows


def stale(options: PerfOptions, shipped: bool = False) -> list[Row]:
    """The stale rows on record for this GPU (what they launch has changed), with torch beside them as in any run.

    Without a GPU, those of the first record. shipped: not of the user's. ArgumentError for a GPU without a record.
    """
    check_names(options)
    known = history.find(torch.cuda.get_device_name() if options.device == "cuda" else "", shipped).rows
    wanted = {row.key: row.group for row in known if row.stale and _asked_for(row, options)}
    beside = {row.key for row in known if row.backend == BASELINE and row.group in wanted.values()}
    found = (_present(row) for row in known if row.key in wanted or row.key in beside)
    return list(dict.fromkeys(Row(**row.identity) for row in found))


def _present(row: Contestant) -> Contestant:
    """A row of torch as it is called today: older records know its only variant by another name."""
    ladder = registered.variants(row.backend, row.op) if row.backend == BASELINE else {row.variant: None}
    return row if row.variant in ladder else replace(row, variant=PLAIN if PLAIN in ladder else list(ladder)[-1])


def _asked_for(row: Contestant, options: PerfOptions) -> bool:
    backends = {row.backend, row.label, "all"}
    return (
        row.op in (options.ops or (row.op,))
        and (not options.backends or not backends.isdisjoint(options.backends))
        and (not options.workloads or any(fnmatch(Case(row.workload).name, Case(t).name) for t in options.workloads))
        and (not options.dtypes or not {row.dtype, "all"}.isdisjoint(options.dtypes))
    )


FORMS = 'a name or pattern of a workload, "large", or shapes such as "x=64x32768", and a dtype that it has'


def _named(options: PerfOptions) -> dict[str, tuple[str, ...]]:
    return {"op": options.ops, "workload": options.workloads, "dtype": options.dtypes}


def check_names(options: PerfOptions) -> None:
    """KernelmuxError for operators, dtypes, backends and variants that do not exist."""
    for op in options.ops:
        catalog.spec(op)
    catalog.check_dtypes(options.ops, [name for name in options.dtypes if name != "all"])
    for label in options.backends:
        if label != "all":
            _check_variant(*registered.split(label, "--backend"), options)


def _check_variant(name: str, variant: str | None, options: PerfOptions) -> None:
    """UnknownName for a variant that none of the operators has; a backend that cannot be loaded is a row's problem."""
    known: dict[str, None] = {}
    try:
        for op in options.ops or catalog.usable():
            known |= dict.fromkeys(registered.variants(name, op))
    except Exception:
        return
    if variant is not None and variant not in known:
        raise unknown(f"variant of {name}", variant, known, "--backend")


def workloads(spec: OpSpec, options: PerfOptions) -> list[Case]:
    """The workloads of a spec that the run asks for; on a CPU its largest `ci` case stands in for them."""
    known = spec.workloads if options.device == "cuda" else (_largest_case(spec),)
    given = tuple(" ".join(text.split()) for text in options.workloads)  # a record knows a workload by its text
    wanted = given or ((LARGE,) if options.quick else ())
    if not wanted:
        return list(known)
    chosen = [c for c in known for text in wanted if _matches(spec, c, text, known)]
    custom = [
        spec.case(text) for text in wanted if "=" in text and not any(_matches(spec, c, text, known) for c in known)
    ]
    return [*dict.fromkeys([*chosen, *(c for c in custom if _fits(spec, c, options))])]


def _matches(spec: OpSpec, case: Case, text: str, known: tuple[Case, ...]) -> bool:
    if text == LARGE:
        return case == large(spec, known)
    return text in (case.text, case.name) or fnmatch(case.name, text)


def large(spec: OpSpec, known: tuple[Case, ...] | None = None) -> Case:
    """The workload with the most work: the one that says what a kernel can do. An earlier one wins a tie."""
    cases = known or spec.workloads
    return max(cases, key=lambda c: (_cost(spec, c).cost.flops, _cost(spec, c).cost.bytes))


def _cost(spec: OpSpec, case: Case) -> Call:
    return spec.hypothetical(case, (case.dtypes or spec.dtypes)[0])


def _largest_case(spec: OpSpec) -> Case:
    """Of the small ones, and of those that all dtypes have if there are any."""
    small = [c for c in spec.cases if c.tier in ("smoke", "ci")]
    return max(small, key=lambda c: (c.dtypes is None, _cost(spec, c).cost.bytes))


def _fits(spec: OpSpec, case: Case, options: PerfOptions) -> bool:
    """Whether a shape given by hand is one of this operator; with --op that is a mistake to be told."""
    try:
        call = _cost(spec, case)
        if options.device == "cpu":
            memory_fit.require(call, f"--workload {case.text}")
    except (KernelmuxError, KeyError):
        if options.ops and len(options.ops) == 1:
            raise
        return False
    return True


def _dtypes(spec: OpSpec, case: Case, options: PerfOptions) -> list[torch.dtype]:
    allowed = [d for d in spec.dtypes if case.dtypes is None or d in case.dtypes]
    if "all" in options.dtypes:
        return allowed
    if options.dtypes:
        return [d for d in allowed if d in [dtypes.parse(name) for name in options.dtypes]]
    usual = [d for d in (QUICK if options.quick else USUAL) if d in allowed]
    return usual or allowed[:1]


def of_group(spec: OpSpec, case: Case, dtype: torch.dtype, options: PerfOptions) -> Iterator[Row]:
    """The rows that do one piece of work; KernelmuxError for a call that the operator does not have."""
    capability = torch.cuda.get_device_capability() if options.device == "cuda" and not options.elsewhere else None
    call = spec.hypothetical(case, dtype, torch.device(options.device), capability)
    for name, only in _labels(options):
        of_backend = Row(spec.name, case.text, dtypes.SHORT[dtype], name, only or "")
        found = list(_ladder(of_backend, spec, call, options.elsewhere))
        if name == BASELINE and not _is_asked(BASELINE, options):  # beside the others: what they are compared with
            found = [row for row in found if row.variant == PLAIN and not row.problem] or found[-1:]
        if options.impl and not options.backends:  # beside it: what each backend would run
            found = [row for row in found if not row.problem and row.pays][-1:] or found[-1:]
        yield from found


def _is_asked(backend: str, options: PerfOptions) -> bool:
    """Whether a run is to have the ladder of a backend, or some of it."""
    asked = chosen_backends(options)
    return not asked or any(registered.split(label)[0] == backend for label in asked)


def _labels(options: PerfOptions) -> list[tuple[str, str | None]]:
    """Backends in order of priority, the baseline always among them: every row is compared with it."""
    asked = [registered.split(label) for label in options.backends if label != "all"]
    if not asked or "all" in options.backends:
        asked = [(name, None) for name in registered.backend_names()]
    beside = [(peers.NAME, None)] if options.peers else []
    chosen = dict.fromkeys([(BASELINE, None), *asked, *beside])
    if options.device == "cpu":  # times of an emulator mean nothing
        chosen = {item: None for item in chosen if not emulates(item[0])}
    return sorted(chosen, key=lambda item: priority(item[0]))


def chosen_backends(options: PerfOptions) -> tuple[str, ...]:
    """The backends and variants that a run is limited to; none if it takes all."""
    return () if "all" in options.backends else options.backends


def chosen_dtypes(options: PerfOptions) -> tuple[str, ...]:
    """The dtypes that a run is limited to; none if it takes all, or the usual ones."""
    return () if "all" in options.dtypes else options.dtypes


def emulates(name: str) -> bool:
    """Whether a backend would run on the emulator where there is no GPU."""
    try:
        return registered.backend(name).emulates
    except Exception:
        return False


def priority(name: str) -> int:
    """The priority of a backend; one that is not there, or cannot be imported, comes last."""
    try:
        return registered.backend(name).priority
    except Exception:
        return 1 << 30


def _ladder(row: Row, spec: OpSpec, call: Call, elsewhere: bool = False) -> Iterator[Row]:
    """A row for each variant of the backend of `row`, or for the one that it names.

    elsewhere: what cannot run there, its workers say.
    """
    if not elsewhere and (reason := registered.unavailable(row.backend, call.device)):
        yield replace(row, problem=reason)
        return
    try:
        ladder = registered.variants(row.backend, spec.name)
    except Exception as error:
        kind = "" if isinstance(error, KernelmuxError) else f"{type(error).__name__}: "
        yield replace(row, problem=f"its module cannot be used: {kind}{error}", broken=True)
        return
    if not ladder:
        yield replace(row, problem=f"has no implementation of {spec.name}")
    elif row.variant and row.variant not in ladder:
        yield replace(row, problem=f"{spec.name} has no such variant; it has {', '.join(ladder)}")
    for variant, implementation in ladder.items():
        if row.variant in ("", variant):
            reasons = "; ".join(implementation.reasons(call))
            yield replace(row, variant=variant, problem=reasons, pays=implementation.pays_for(call))
