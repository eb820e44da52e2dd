"""Cases that the command line spells out: whether they are calls of an operator, and fit into memory."""

from __future__ import annotations

import math
import os

import torch

from kernelmux.conformance.inputs.generate import NEWEST
from kernelmux.registry import dtypes
from kernelmux.registry.cases import CHANNELS_LAST, Case
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.spec import OpSpec

REFERENCE_BYTES = 8  # per element: the reference runs in float64


def case(spec: OpSpec, text: str) -> Case:
    """The case of an operator that a command line spells: x=5x1025,axis=0."""
    return spec.case(text.replace(",", " "))


def names_tensors(spec: OpSpec, text: str) -> bool:
    """Whether a text gives something for exactly the tensors of the operator, with or without optional ones."""
    words = {item.partition("=")[0] for item in text.replace(",", " ").split()}
    given = words - {s.name for s in spec.scalars} - {CHANNELS_LAST}
    return {t.name for t in spec.tensors if not t.optional} <= given <= {t.name for t in spec.tensors}


def refusal(spec: OpSpec, case: Case, formats: tuple[str, ...] = ()) -> str:
    """Why a case is no call of the operator in the first of these dtypes (default: of the spec's), or ""."""
    names = [t.name for t in spec.tensors if not t.optional]
    try:
        shapes = case.shapes
    except ValueError as error:  # an ArgumentError among them
        return str(error)
    if not set(names) <= set(shapes):
        got = ", ".join(shapes) or "none"
        return f"{spec.name}: expected a shape such as 4x100 for each of {', '.join(names)}, got shapes for {got}"
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
    try:
        spec.hypothetical(case, dtype, capability=NEWEST)
    except (ArgumentError, TypeError) as error:
        return str(error)
    return ""
