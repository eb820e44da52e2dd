"""Is the result of a call right? By the bound of its spec, against the float64 reference, or against another result.

Where the reference can be afforded (`AFFORDABLE`), each result is compared with it, within the bound of the arithmetic of
its own variant; so it is known which of two is wrong. Beyond that the two results are compared with each other: the second
one, in float64, stands for the reference, magnitudes are computed in fp32, and the sum of both bounds is allowed. What both
have wrong alike is then not seen. An output that is not floating must be equal. Where NaN and infinities stand is part of
what is compared; a call with values that the spec leaves undefined is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernelmux.registry.backend import bounds
from kernelmux.registry.backend.description import Implementation
from kernelmux.registry.dtypes import SHORT
from kernelmux.registry.spec import numerics
from kernelmux.registry.spec.signature import Call, exact_arguments

AFFORDABLE = {"cpu": (2**22, 2**33), "cuda": (2**27, 2**43)}  # elements in and out, flops
HUGE = 2.0**56  # of such numbers fp32 holds the sum of 2^15 squares


@dataclass(frozen=True)
class Result:
    """All outputs of a call, saved ones among them, and the variant that computed them."""

    name: str
    implementation: Implementation
    outputs: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Judgement:
    """wrong: a line per output that is off. against: what was compared with. open: why nothing was judged, or ""."""

    wrong: tuple[str, ...] = ()
    against: str = ""
    open: str = ""


def judge(call: Call, first: Result, second: Result | None) -> Judgement:
    """Judge one result, or two of the same call; see the module. Tensors without history, outside of autocast."""
    results = [first, second] if second else [first]
    if wrong := tuple(line for r in results for line in _misshapen(call, r)):
        return Judgement(wrong, "the signature of the spec")
    if why := undefined(call):
        return Judgement(open=why)
    if affordable(call):
        references = call.spec.evaluate(call)
        lines = (line for r in results for line in _against_reference(call, r, references))
        return Judgement(tuple(lines), "the float64 reference of the spec")
    if second is None:
        return Judgement(open="too large for the float64 reference, and there is no second result")
    return Judgement(tuple(_against_each_other(call, first, second)), f"each other: {first.name} and {second.name}")


def affordable(call: Call) -> bool:
    """Whether the float64 reference is evaluated: it takes several tensors of 8 bytes an element."""
    elements, flops = AFFORDABLE[call.device.type]
    outputs = sum(torch.Size(o.shape(call)).numel() for o in call.spec.outputs)
    return sum(x.numel() for x in call.tensors.values()) + outputs <= elements and call.cost.flops <= flops


def undefined(call: Call) -> str | None:
    """Why the spec leaves open what the result is for values among these inputs, or None."""
    special = call.spec.special
    if not special.undefined and special.on(call.arguments):
        return None
    for name, x in call.tensors.items():
        for kind in _kinds(x) if x.is_floating_point() and x.numel() else ():
            keys = (kind, kind.lstrip("-"), f"{kind} {SHORT[call.dtype]}")
            why = next((special.undefined[k] for k in keys if k in special.undefined), None)
            if why or not special.on(call.arguments):
                return f"{name} has values ({kind}) for which {call.spec.name} is not defined" + (
                    f": {why}" if why else ""
                )
    return None


def _kinds(x: torch.Tensor) -> Iterator[str]:
    """The special values that a tensor has, by their names in `SpecialValues`."""
    wide = x.float()
    found = {
        "nan": wide.isnan(),
        "inf": wide == torch.inf,
        "-inf": wide == -torch.inf,
        "largest": wide.isfinite() & (wide.abs() > HUGE),
    }
    yield from (kind for kind, where in found.items() if bool(where.any()))


def _misshapen(call: Call, result: Result) -> Iterator[str]:
    if len(result.outputs) != len(call.spec.outputs):
        yield f"{result.name} gives {len(result.outputs)} outputs, expected {len(call.spec.outputs)}"
        return
    for output, got in zip(call.spec.outputs, result.outputs, strict=True):
        shape, dtype = output.shape(call), output.dtype_of(call)
        if tuple(got.shape) != shape or got.dtype != dtype:
            have = f"{SHORT.get(got.dtype, got.dtype)}{list(got.shape)}"
            yield f"{result.name} gives {output.name} as {have}, expected {SHORT.get(dtype, dtype)}{list(shape)}"


def _against_reference(call: Call, result: Result, references: tuple[torch.Tensor, ...]) -> Iterator[str]:
    arguments = exact_arguments(call)
    flushed = bounds.flushed(call)
    for i, (got, ref) in enumerate(zip(result.outputs, references, strict=True)):
        if not got.dtype.is_floating_point:
            yield from _unequal(call, i, result.name, got, ref.to(got.dtype))
            continue
        limit = _limit(call, i, result.implementation, ref, arguments, flushed)
        yield from _off(call, i, result.name, got, ref, limit)


def _against_each_other(call: Call, first: Result, second: Result) -> Iterator[str]:
    arguments = tuple(a.float() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in _placed(call))
    for i, (got, other) in enumerate(zip(first.outputs, second.outputs, strict=True)):
        if not got.dtype.is_floating_point:
            yield from _unequal(call, i, first.name, got, other)
            continue
        ref = _stand_in(got, other)
        both = (_limit(call, i, r.implementation, ref, arguments) for r in (first, second))
        yield from _off(call, i, first.name, got, ref, sum(both, torch.zeros_like(ref)))


def _placed(call: Call) -> Iterator[Any]:
    """The arguments on the device where the call runs."""
    return (a.to(call.device) if isinstance(a, torch.Tensor) else a for a in call.arguments.values())


def _stand_in(got: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A result in float64; where it overflowed and the other one did not, the largest number, next to which both lie."""
    largest = torch.full_like(other, torch.finfo(other.dtype).max, dtype=torch.float64)
    return torch.where(other.isinf() & got.isfinite(), torch.copysign(largest, other.double()), other.double())


def _limit(
    call: Call, i: int, how: Implementation, ref: torch.Tensor, arguments: tuple[Any, ...], flushed: Any = ()
) -> torch.Tensor:
    arithmetic = how.computes(call.spec.outputs[i].name, call.dtype, call.scalars)
    return bounds.limit(call, i, arithmetic, ref, arguments, flushed).total


def _off(call: Call, i: int, name: str, got: torch.Tensor, ref: torch.Tensor, limit: torch.Tensor) -> Iterator[str]:
    found = numerics.compare(got, ref, limit)
    if not found.passed:
        at = f"{call.spec.outputs[i].name}{list(found.index) or ''}"
        of = f"{int(found.wrong.sum())} of {got.numel()} elements"
        values = f"{got[found.index].item():.9g} for {ref[found.index].item():.9g}"
        yield f"{name}: {of} off, worst {at}: {values}, {found.budget:.3g} times its bound {limit[found.index].item():.3g}"


def _unequal(call: Call, i: int, name: str, got: torch.Tensor, want: torch.Tensor) -> Iterator[str]:
    differ = got != want
    if bool(differ.any()):
        index = tuple(int(k) for k in differ.nonzero()[0])
        at = f"{call.spec.outputs[i].name}{list(index) or ''}"
        values = f"{got[index].item()} for {want[index].item()}"
        yield f"{name}: {int(differ.sum())} of {got.numel()} elements off, first {at}: {values}, which must be equal"
