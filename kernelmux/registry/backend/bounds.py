"""How far an output of a call may be off: the one place that the suite, perf and shadow mode ask.

`numerics` has the terms; here they get what they need of a call. A result is right where `numerics.compare` finds it within
`limit(...).total` of the float64 reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from kernelmux.registry.dtypes import computes
from kernelmux.registry.spec import numerics
from kernelmux.registry.spec.signature import Call
from kernelmux.registry.spec.value_domains import Computed, lawful


def limit(
    call: Call,
    i: int,
    how: numerics.Arithmetic,
    ref: torch.Tensor,
    arguments: tuple[Any, ...],
    flushed: Sequence[torch.Tensor] = (),
) -> numerics.Bound:
    """The bound of output `i` of a call, by element; a term that is NaN counts as nothing.

    how: what computed it. ref: its reference in float64; arguments: those of the reference (`exact_arguments`), of a part
    of the call where only that is compared. flushed: what `flushed` gives.
    """
    output, model = call.spec.outputs[i], call.spec.errors[i]
    repeated = any(numerics.repeats(x) for x in call.tensors.values())
    made = numerics.bound(model, how, ref, output.dtype_of(call), call.dtype, arguments, call.axes, repeated)
    if model.flushes and flushed:
        made = replace(made, flushed=(flushed[i] - ref).abs())
    return made.settled()


def flushed(call: Call) -> tuple[torch.Tensor, ...]:
    """The references where every subnormal number of fp32 among the inputs is 0; () if there is none, or none may be.

    Inputs that are computed from others follow these.
    """
    if not any(model.flushes for model in call.spec.errors):
        return ()
    made = {name: _without_tiny(x) for name, x in call.tensors.items() if _tiny(x)}
    if not made:
        return ()
    following = [t.name for t in call.spec.tensors if isinstance(t.domain, Computed) and t.name in call.tensors]
    if following := [name for name in following if name not in made]:
        found = lawful(call.spec, {**call.tensors, **made}, call.scalars)
        made |= {name: found[name] for name in following}
    return call.spec.evaluate(replace(call, arguments={**call.arguments, **made}))


def _without_tiny(x: torch.Tensor) -> torch.Tensor:
    zeroed = torch.where(x.abs() < torch.finfo(torch.float32).smallest_normal, torch.zeros_like(x), x)
    return zeroed.pin_memory() if x.is_pinned() else zeroed


def _tiny(x: torch.Tensor) -> bool:
    """Whether a tensor has numbers that are subnormal in fp32; those of 8-bit floats are normal there."""
    if not x.is_floating_point() or not computes(x.dtype):
        return False
    size = x.abs()
    return bool(((size > 0) & (size < torch.finfo(torch.float32).smallest_normal)).any())
