"""The rows of a run that takes minutes: the default report, and one operator on a GPU.

The report has per operator one workload in one dtype, and of each backend what a plain call of it runs, beside torch as
its users write it and torch.compile of that. Well-known operators come first, so that a run whose minutes are
over has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from kernelmux.perf import peers
from kernelmux.perf.planning import plan
from kernelmux.perf.planning.plan import BASELINE, LARGE, PLAIN, Row
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.rows.row_result import Contestant
from kernelmux.registry import catalog, dtypes
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.cases import Case
from kernelmux.registry.spec import OpSpec

COMPILED = "torch_compile"
MEMORY = 80 << 30  # bytes of a GPU that is not here
SETS = 32  # times the bytes of a call that a GPU has to have
KNOWN = (
    "matmul",
    "attention",
    "softmax",
    "layer_norm",
    "rms_norm",
    "cross_entropy",
    "linear",
    "conv2d",
    "gelu",
    "silu",
    "swiglu",
    "rope",
    "add_rms_norm",
    "paged_attention",
    "attention_backward",
    "fp8_matmul",
    "int8_matmul",
)


def order(names: Iterable[str]) -> list[str]:
    """Operators, the well-known ones first."""
    given = list(names)
    return [*(name for name in KNOWN if name in given), *(name for name in given if name not in KNOWN)]


def report(options: PerfOptions) -> list[Row]:
    """The rows of the default report, group by group, torch first."""
    if options.peers:
        peers.join()
    plan.check_names(options)
    rows: list[Row] = []
    for op in order(catalog.usable()):
        rows += _chosen(list(_group(catalog.spec(op), options)), options)
    return rows


def _group(spec: OpSpec, options: PerfOptions) -> Iterable[Row]:
    (case,) = plan.workloads(spec, replace(options, workloads=(LARGE,)))
    if options.device == "cuda":
        memory = MEMORY if options.elsewhere else torch.cuda.get_device_properties(0).total_memory
        case = plan.large(spec, comparable(spec, fitting(spec, memory), options.elsewhere))
    return plan.of_group(spec, case, _dtype(spec, case), options)


def fitting(spec: OpSpec, memory: int) -> tuple[Case, ...]:
    """The workloads that a GPU of so many bytes takes: a row keeps several sets of inputs, and torch's own copies."""
    found = [case for case in spec.workloads if SETS * _bytes(spec, case) <= memory]
    return tuple(found) or (min(spec.workloads, key=lambda case: _bytes(spec, case)),)


def comparable(spec: OpSpec, cases: tuple[Case, ...], elsewhere: bool = False) -> tuple[Case, ...]:
    """Those that torch's plain form takes on a GPU, with which the others are compared; all where it takes none."""
    plain = registered.variants(BASELINE, spec.name).get(PLAIN)
    gpu, capability = torch.device("cuda"), None if elsewhere else torch.cuda.get_device_capability()

    def taken(case: Case) -> bool:
        call = spec.hypothetical(case, _dtype(spec, case), gpu, capability)
        return plain is not None and not plain.reasons(call)

    return tuple(case for case in cases if taken(case)) or cases


def _bytes(spec: OpSpec, case: Case) -> float:
    """What a call of a workload reads and writes at least."""
    return spec.hypothetical(case, _dtype(spec, case)).cost.bytes


def _dtype(spec: OpSpec, case: Case) -> torch.dtype:
    return dtype_of(case.dtypes or spec.dtypes)


def dtype_of(allowed: Iterable[torch.dtype]) -> torch.dtype:
    """The one dtype that stands for an operator: bf16 where it has it, else its first."""
    given = list(allowed)
    return next((dtype for dtype in plan.QUICK if dtype in given), given[0])


def _chosen(rows: list[Row], options: PerfOptions) -> list[Row]:
    """Of each backend the row that stands for it; of those that were asked for by variant, all that can run."""
    named = {name for name in options.backends if "/" in name}
    kept = []
    for backend in dict.fromkeys(row.backend for row in rows):
        ladder = [row for row in rows if row.backend == backend]
        asked = [row for row in ladder if row.label in named]
        kept += asked or [representative(ladder)]
    return [row for row in kept if row.backend != peers.NAME or row.variant == COMPILED]


def representative(ladder: list[Row]) -> Row:
    """What a plain call of a backend runs, its last rung that can and pays; of torch the plain form; torch.compile of
    others."""
    wanted = {BASELINE: PLAIN, peers.NAME: COMPILED}.get(ladder[0].backend)
    return next(
        (row for row in ladder if row.variant == wanted and not row.problem),
        next((row for row in reversed(ladder) if not row.problem and row.pays), ladder[-1]),
    )


def by_importance(rows: list[Row]) -> list[Row]:
    """The rows of whole operators, the largest workload in each dtype first: what is last may be left out."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    ordered = sorted(groups.values(), key=lambda group: _workload(group[0]))
    return [row for group in ordered for row in group]


def _workload(row: Contestant) -> tuple[bool, str]:
    spec, dtype = catalog.spec(row.op), dtypes.parse(row.dtype)
    fitting = tuple(case for case in spec.workloads if case.dtypes is None or dtype in case.dtypes)
    return plan.large(spec, fitting).text != row.workload, row.op
