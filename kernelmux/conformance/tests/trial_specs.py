"""Small operators for tests of the vocabulary: they are in no catalog, and their kernels are given as functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any
from unittest.mock import patch

import torch

from kernelmux.conformance.inputs import trials
from kernelmux.conformance.judging.probe import Enough, Probe
from kernelmux.conformance.options import Options
from kernelmux.registry.backend import Implementation
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.cases import Case
from kernelmux.registry.cost import Cost
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import Computed, Constraint, Index, NoExact, OpSpec, Output, Scalar, SpecialValues, Tensor

SINGLE = (torch.float32,)


BACKEND, VARIANT = "torch_ref", "trial"


@contextmanager
def registered_as(spec: OpSpec, fn: Callable[..., Any]) -> Iterator[Probe]:
    """A probe of a function that is the one variant of its operator while this lasts; its results are made contiguous.

    It counts for a kernel of its own, which torch knows nothing of.
    """
    variants, implementation = registered.variants, Implementation(_contiguous(fn), "a trial")

    def found(backend: str, op: str) -> dict[str, Implementation]:
        return {VARIANT: implementation} if op == spec.name else variants(backend, op)

    with patch.object(registered, "variants", found), patch.object(registered, "composite", lambda name: False):
        registered.forget_ladders()
        try:
            yield Probe(spec, "trial", BACKEND, VARIANT, implementation, Options())
        finally:  # all remember by the name of the operator
            registered.forget_ladders()
            dispatch._plans.clear()
            dispatch._keys.pop(id(spec), None)
            trials._memory.clear()


def _contiguous(fn: Callable[..., Any]) -> Callable[..., Any]:
    def called(*arguments: Any) -> Any:
        result = fn(*arguments)
        return tuple(y.contiguous() for y in result) if isinstance(result, tuple) else result.contiguous()

    return called


def failures(check: Callable[[Probe], None], spec: OpSpec, fn: Callable[..., Any]) -> list[str]:
    """What a check says against a function, a text per failing trial."""
    with registered_as(spec, fn) as probe:
        try:
            check(probe)
        except Enough:
            pass
    assert any(record.assertions for record in probe.records)
    return [record.text for record in probe.records if record.status == "failed"]


def operator(name: str, inputs: tuple[Any, ...], reference: Any, *cases: str, **more: Any) -> OpSpec:
    """A spec of one output like its first input, with a generous bound and no exact inputs."""
    given = {
        "outputs": (Output("y", like=inputs[0].name),),
        "error": ErrorModel(magnitude=lambda *a: torch.as_tensor(reference(*a)).abs() + 1, flushes=True),
        "cost": lambda call: Cost(bytes=1, flops=1),
    }
    listed = tuple(Case(text, tier="smoke") for text in cases)
    common = {"version": 1, "summary": "A trial.", "math": "see its reference", "exact": NoExact("a trial")}
    apart = FunctionType(  # implementations here call `reference`, and the suite hears it
        reference.__code__.replace(),
        reference.__globals__,
        reference.__name__,
        reference.__defaults__,
        reference.__closure__,
    )
    return OpSpec(
        name=name, inputs=inputs, reference=apart, cases=listed, workloads=listed, **{**common, **given, **more}
    )


def affine(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x * weight if bias is None else x * weight + bias


AFFINE = operator(
    "affine",
    (
        Tensor("x", "... N", dtypes=SINGLE),
        Tensor("weight", "N", like="x"),
        Tensor("bias", "N", like="x", optional=True, doc="added at the end"),
    ),
    affine,
    "x=4x33 weight=33 bias=33",
    "x=7x1000 weight=1000 bias=1000",
    special=SpecialValues(undefined={"largest": "a product overflows before the sum"}),
)


def picked(x: torch.Tensor, target: torch.Tensor, ignore: int) -> torch.Tensor:
    """The value of each row at its target, 0 where that is `ignore`, NaN where it is no column."""
    ignored, stray = target == ignore, (target < 0) | (target >= x.shape[1])
    found = x.gather(1, target.masked_fill(ignored | stray, 0)[:, None])[:, 0]
    return found.masked_fill(stray, torch.nan).masked_fill(ignored, 0)


PICKED = operator(
    "picked",
    (
        Tensor("x", "M V", dtypes=SINGLE),
        Tensor("target", "M", dtypes=(torch.int64,), domain=Index("V", ("ignore",))),
        Scalar("ignore", int, -100),
    ),
    picked,
    "x=40x9 target=40",
    "x=64x130 target=64",
    outputs=(Output("y", like="x", dims="M"),),
    error=ErrorModel(magnitude=lambda *a: torch.ones(())),
    constraints=(Constraint("V >= 1", lambda v: v["V"] >= 1),),
)


def weights(x: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """The softmax of each row; what a forward call has saved is a short cut and no part of the meaning."""
    return torch.softmax(x, -1)


def saved(arguments: Any) -> torch.Tensor:
    found: torch.Tensor = arguments["x"].logsumexp(-1)
    return found


WEIGHTS = operator(
    "weights",
    (Tensor("x", "M V", dtypes=SINGLE), Tensor("lse", "M", dtypes=SINGLE, domain=Computed(saved))),
    weights,
    "x=12x9 lse=12",
    "x=7x130 lse=7",
    special=SpecialValues(undefined=dict.fromkeys(("inf", "largest"), "inf - inf in the short cut")),
)
