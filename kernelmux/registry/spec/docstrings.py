"""The docstring of a public operator, from its spec."""

from __future__ import annotations

from typing import Any

import torch

from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.spec.op_spec import OpSpec
from kernelmux.registry.spec.signature import Output


def documentation(spec: OpSpec) -> str:
    """The docstring of a public operator, from its spec."""
    lines = [spec.summary, "", f"    {spec.math}", "", "Arguments:"]
    lines += [f"    {i.name}: {kind(i)}{'; ' + said(i) if said(i) else ''}" for i in spec.inputs]
    lines += ['    backend: a backend, a variant such as "cuda/tiled", or a list to try in order', "", "Returns:"]
    lines += [_output(o) for o in spec.outputs if not o.saved]
    if saved := [_output(o) for o in spec.outputs if o.saved]:
        lines += ["", f'Saved for the backward; dispatch.outputs("{spec.name}", ...) returns these as well:', *saved]
    lines += ["", "Raises: ArgumentError, UnsupportedError, BackendUnavailable, UnknownName"]
    lines += [f"Source: {s}" for s in spec.sources]
    return "\n".join(lines)


def _output(output: Output) -> str:
    return f"    {output.name}: {form(output)}{'; ' + said(output) if said(output) else ''}"


def said(item: Any) -> str:
    """What the spec says of an argument or output, and since which of its versions there is one that came later."""
    return "; ".join(filter(None, (item.doc, f"since version {item.since}" if item.since > 1 else "")))


def form(output: Output) -> str:
    """The dtype and the shape of an output, and how it lies where that is not always contiguous."""
    order = f", channels-last where {output.order} is, else contiguous" if output.order else ""
    return f"{_dtype(output)}, {_shape(output)}{order}"


def _dtype(output: Output) -> str:
    if isinstance(output.dtype, torch.dtype):
        return SHORT.get(output.dtype, str(output.dtype))
    return "dtype by the arguments" if output.dtype else f"dtype of {output.like}"


def _shape(output: Output) -> str:
    if output.dims == "like":
        return f"shape of {output.like}"
    return f"[{output.dims}]" if isinstance(output.dims, str) else "the reduced shape"


def kind(item: Any) -> str:
    """What an argument may be: shapes and dtypes of a tensor, the type of a scalar."""
    if hasattr(item, "dims"):
        kinds = f"like {item.like}" if item.like else "/".join(SHORT[d] for d in item.dtypes)
        return f"{item.shapes} {kinds}{' or None' if item.optional else ''}{', in host memory' if item.host else ''}"
    if hasattr(item, "of"):
        return f"axis of {item.of}"
    choices = f", one of {item.choices}" if item.choices else ""
    several = f", or {item.length} of them" if item.length else ""
    return f"{item.type.__name__}{several}{' or None' if item.optional else ''}{choices}"
