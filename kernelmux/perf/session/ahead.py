"""Rows compiled by a process without a GPU, for the kind of GPU beside it, which times other rows meanwhile."""

from __future__ import annotations

import torch

from kernelmux.perf.planning.plan import Row
from kernelmux.registry import catalog, dtypes
from kernelmux.registry.util import cards
from kernelmux.warm import compiling


def compile(row: Row) -> None:
    """Compile what a call of the row launches, as `compiling.compile_call` does."""
    spec, dtype = catalog.spec(row.op), dtypes.parse(row.dtype)
    call = spec.hypothetical(spec.case(row.workload), dtype, torch.device("cpu"), cards.emulated().capability)
    compiling.compile_call(call, row.backend, row.variant)
