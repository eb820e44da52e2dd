"""Calls that hypothesis draws and shrinks, and what is wrong with the numbers of one that ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from kernelmux.conformance.fuzz import calls
from kernelmux.conformance.fuzz.calls import Draft, surrounded
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.interop import autocast
from kernelmux.registry.spec import numerics
from kernelmux.registry.spec.signature import Call, Output, exact_arguments


class Drawn(calls.Draw):
    """Choices that hypothesis makes, and shrinks."""

    def __init__(self, draw: Any) -> None:
        super().__init__(lambda low, high: int(draw(st.integers(low, high))))
        self.draw = draw

    def boolean(self) -> bool:
        return bool(self.draw(st.booleans()))

    def evenly(self, values: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(values))

    def some(self, values: Sequence[Any], most: int, unique: bool = False) -> list[Any]:
        return list(self.draw(st.lists(st.sampled_from(values), max_size=most, unique=unique)))


@st.composite
def drafts(draw: Any, ops: tuple[str, ...], able: tuple[str, ...]) -> Draft:
    """A call of the public function of one of the operators, made for these backends."""
    return calls.draft(Drawn(draw), ops, able)


def bits(x: Any) -> Any:
    """What a tensor holds, as bytes; None for what has no memory to look at, where torch itself would fault."""
    if x.is_nested or x.layout != torch.strided or x.is_quantized or x.device.type != "cpu" or x.numel() > 2**20:
        return None
    if x._is_zerotensor() or (x.numel() and x.untyped_storage().nbytes() == 0):
        return None
    return x.detach().resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def wrong(draft: Draft, chosen: str, outputs: tuple[torch.Tensor, ...]) -> str | None:
    """What is wrong with the outputs of a call that ran, or None."""
    spec = draft.spec
    values = tuple(_plain(v) for v in draft.arguments.values())
    if any(what.startswith("autocast") for what in draft.surroundings):
        with surrounded(draft, (chosen,)):
            values = autocast.cast(spec, values, "cpu")
    if outputs[0].is_meta:
        return None if all(v.is_meta for v in values if isinstance(v, torch.Tensor)) else "meta from memory"
    call = spec.bind(*values)
    name, _, variant = chosen.partition("/")
    implementation = registered.variants(name, spec.name)[variant]
    references = spec.evaluate(call)
    for i, (output, got, ref) in enumerate(zip(spec.outputs[: spec.visible], outputs, references, strict=False)):
        want = output.dtype_of(call)
        if tuple(got.shape) != output.shape(call) or got.dtype != want or got.is_neg() or not lies(call, output, got):
            return f"{output.name}: {list(got.shape)} {got.dtype} {got.stride()}"
        if not got.dtype.is_floating_point:
            if not torch.equal(got, ref.to(got.dtype)):
                return f"{output.name}: other numbers"
            continue
        how = implementation.computes(output.name, call.dtype, call.scalars)
        limit = numerics.bound(spec.errors[i], how, ref, want, call.dtype, exact_arguments(call), call.axes).total
        found = numerics.compare(got.detach().as_subclass(torch.Tensor), ref, limit)
        if not found.passed:
            got_, want_ = got[found.index].item(), ref[found.index].item()
            return f"{output.name}: {found.budget:.3g} of the bound at {found.index}: {got_} for {want_}"
    return None


def lies(call: Call, output: Output, got: torch.Tensor) -> bool:
    return bool(got.is_contiguous(memory_format=output.memory_format(call)))


def _plain(value: Any) -> Any:
    """A tensor of torch's own class with the same numbers and no history."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().resolve_neg().clone().as_subclass(torch.Tensor)


def explained(draft: Draft) -> dispatch.Decision:
    return dispatch.explain(draft.spec.name, **draft.arguments, backend=draft.backend)
