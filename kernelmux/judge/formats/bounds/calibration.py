"""The estimated bound beside the derived one, on our own operators, where both are known.

Each operator is judged on cases of its spec with what torch has for it: the variants of the backend torch_ref. The share of
the estimated bound that torch uses says how far the estimate is from a false alarm; estimated over derived, by element, how
far it is from the bound that follows from the operator's error model. What torch is off by on the very inputs is left out
of the estimate, which so has to foresee it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from kernelmux.judge.formats.bounds.estimated_bound import Evaluate, estimate
from kernelmux.judge.formats.bounds.spec_mapping import loosest
from kernelmux.judge.formats.candidate_side import tensors
from kernelmux.judge.formats.task import FormatError
from kernelmux.registry import catalog, numerics
from kernelmux.registry.backend import lookup
from kernelmux.registry.call import dispatch
from kernelmux.registry.cases import Case, generator
from kernelmux.registry.spec import Call, OpSpec

CASES = {
    "softmax": ("x=37x1000", "x=4x8191"),
    "log_softmax": ("x=37x1000",),
    "matmul": ("a=64x63 b=63x64", "a=48x2056 b=2056x40"),
    "linear": ("x=33x200 weight=48x200 bias=48 activation=gelu",),
    "gelu": ("x=4099", "x=4099 approximate=tanh"),
    "silu": ("x=4099",),
    "swiglu": ("a=2049 b=2049",),
    "layer_norm": ("x=37x1000 weight=1000 bias=1000",),
    "rms_norm": ("x=37x1000 weight=1000",),
    "conv2d": ("x=2x24x14x14 weight=32x24x3x3 bias=32 padding=1",),
    "reduce_sum": ("x=37x1000 axis=1", "x=65537 inputs=positive"),
    "cross_entropy": ("logits=64x1000 target=64 reduction=none", "logits=64x1000 target=64"),
    "attention": ("q=1x2x33x64 k=1x2x65x64 v=1x2x65x64",),
    "add": ("x=4099 y=4099",),
}
DTYPES = (torch.float32, torch.bfloat16)


class CalibrationRow(NamedTuple):
    """One case: estimated over derived in the median, and the least; the largest share of the estimate that torch uses."""

    op: str
    case: str
    dtype: torch.dtype
    ratio: float
    least: float
    used: float


def rows(seeds: range, names: tuple[str, ...] = tuple(CASES)) -> Iterator[CalibrationRow]:
    """Every case in every dtype, over all seeds: the ratio of the first one, the largest share of all."""
    for name in names:
        spec = catalog.spec(name)
        for text in CASES[name]:
            for dtype in DTYPES:
                yield _row(spec, spec.case(text), dtype, seeds)


def _row(spec: OpSpec, case: Case, dtype: torch.dtype, seeds: range) -> CalibrationRow:
    ratio, least, used = 0.0, float("inf"), 0.0
    for seed in seeds:
        call = _call(spec, case, dtype, seed)
        made = estimate(_evaluated(call), list(call.tensors.values()), seed, seen=False)[0]
        if made.bound is None:
            raise FormatError(
                f"{spec.name}, {case.text}: expected an output with a bound, got one that has to be equal"
            )
        limit = _derived(call)
        share = (made.bound / limit).flatten()
        ratio = ratio or float(share.median())
        least = min(least, float(share.min()))
        for got in _torch(call):
            used = max(used, numerics.compare(got, made.value, made.bound).budget)
    return CalibrationRow(spec.name, case.name, dtype, ratio, least, used)


def _call(spec: OpSpec, case: Case, dtype: torch.dtype, seed: int) -> Call:
    drawn = spec.drawn(case, dtype, generator(spec.name, "calibration", case.name, seed))
    scalars = {name: value for name, value in case.scalars.items() if name != "inputs"}
    return spec.bind(**{**drawn, **scalars})


def _evaluated(call: Call) -> Evaluate:
    """The call's operator as torch has it, in the dtype of its tensors: in float64, its reference."""
    names = list(call.tensors)

    def evaluate(leaves: Sequence[torch.Tensor], exactly: bool) -> tuple[torch.Tensor, ...]:
        made = {**call.arguments, **dict(zip(names, leaves, strict=True))}
        result = call.spec.reference(*made.values()) if exactly else next(_torch(call.spec.bind(**made)))
        return tensors(result)[:1]

    return evaluate


def _torch(call: Call) -> Iterator[torch.Tensor]:
    """The first output of every variant of torch_ref that takes the call."""
    for name, implementation in lookup.variants("torch_ref", call.spec.name).items():
        if not dispatch.verdicts(call, "torch_ref", name)[0].reasons:
            yield tensors(implementation.fn(*call.arguments.values()))[0]


def _derived(call: Call) -> torch.Tensor:
    return loosest(catalog.spec(call.spec.name), call, call.spec.evaluate(call)[0])
