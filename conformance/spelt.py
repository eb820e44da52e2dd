"""Cases that the command line spells out: whether they are calls of an operator, and fit into memory."""

from __future__ import annotations

import math
import os
from typing import Any

import torch

from kernelmux.registry import dtypes
from kernelmux.registry.cases import Case
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.spec import REQUIRED, OpSpec, Tensor

REFERENCE_BYTES = 8  # per element: the reference runs in float64
NEWEST = (9, 0)


def refusal(spec: OpSpec, case: Case, formats: tuple[str, ...] = ()) -> str:
    """Why a case is no call of the operator in the first of these dtypes (default: of the spec's), or ""."""
    names, scalars = [t.name for t in spec.tensors], [s.name for s in spec.scalars]
    if set(case.shapes) != set(names):
        got = ", ".join(case.shapes) or "none"
        return f"{spec.name}: expected a shape such as 4x100 for each of {', '.join(names)}, got shapes for {got}"
    if odd := [name for name in case.scalars if name not in scalars]:
        return f"{spec.name}: expected scalars among {', '.join(scalars) or 'none'}, got {', '.join(odd)}"
    if size := _too_large(spec, case):
        return size
    dtype = dtypes.parse(formats[0]) if formats else spec.dtypes[0]
    return _bound(spec, case, dtype if dtype in spec.dtypes else spec.dtypes[0])


def _too_large(spec: OpSpec, case: Case) -> str:
    need = REFERENCE_BYTES * sum(math.prod(shape) for shape in case.shapes.values())
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if need <= have:
        return ""
    return (
        f"{spec.name}: the case needs {need / 2**30:.0f} GiB for its float64 reference, this machine has {have >> 30}"
    )


def _bound(spec: OpSpec, case: Case, dtype: torch.dtype) -> str:
    """What the spec says about the call, on tensors without data; "" if it takes it."""
    arguments: list[Any] = []
    for item in spec.inputs:
        if isinstance(item, Tensor):
            arguments.append(torch.empty(case.shapes[item.name], dtype=dtype, device="meta"))
        elif item.name not in case.scalars and item.default is REQUIRED:
            return f"{spec.name}: the case says nothing about {item.name}, which has no default"
        else:
            arguments.append(case.scalars.get(item.name, item.default))
    try:
        spec.bind(*arguments, device=torch.device("cpu"), capability=NEWEST)
    except (ArgumentError, TypeError) as error:
        return str(error)
    return ""
