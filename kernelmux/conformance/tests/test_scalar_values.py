"""Every shipped variant with every value that the specs name for a scalar: within the bound, NaN where the spec has it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from kernelmux.conformance.inputs.trials import Trial
from kernelmux.registry import catalog
from kernelmux.registry.backend import backends, variants
from kernelmux.registry.call import dispatch
from kernelmux.registry.cases import draw, generator
from kernelmux.registry.spec import Scalar, numerics

VALUED = {
    "softmax": ("scale", ("x=5x300", "x=70x5 axis=0")),
    "attention": ("scale", ("q=1x1x9x64 k=1x1x77x64 v=1x1x77x64 causal=True",)),
    "rms_norm": ("eps", ("x=5x65 weight=65",)),
    "rms_norm_backward": ("eps", ("grad_out=5x65 x=5x65 weight=65",)),
}
Inputs = Callable[[tuple[int, ...], torch.Generator], torch.Tensor]


def large(shape: tuple[int, ...], rng: torch.Generator) -> torch.Tensor:
    """Maxima far above the rest, where rounding what is subtracted shows most."""
    return torch.randn(shape, generator=rng) * 30


def trial(op: str, text: str, name: str, value: float, dtype: torch.dtype, inputs: Inputs | None = None) -> Trial:
    """The call of a case with one scalar set."""
    spec = catalog.spec(op)
    case, rng = spec.case(text), generator(op, text, value)
    values: list[Any] = []
    for item in spec.inputs:
        if item.name in case.shapes:
            shape = case.shapes[item.name]
            values.append(inputs(shape, rng).to(dtype) if inputs else draw(shape, dtype, rng))
        else:
            default = value if item.name == name else getattr(item, "default", None)
            values.append(case.scalars.get(item.name, default))
    return Trial(spec, case.name, text, dtype, 0, tuple(values))


def budgets(made: Trial) -> Iterator[tuple[str, float]]:
    """Each variant of each backend that can run the call, with the share of its bound that it uses."""
    for backend in backends():
        for variant, implementation in variants(backend, made.spec.name).items():
            if implementation.reasons(made.call):
                continue
            outputs = dispatch.call(made.spec, made.values, f"{backend}/{variant}")
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            limits = made.bounds(
                [implementation.computes(o.name, made.dtype, made.call.scalars) for o in made.spec.outputs]
            )
            found = zip(outputs, made.references, limits, strict=True)
            yield f"{backend}/{variant}", max(numerics.compare(o, r, b.total).budget for o, r, b in found)


def scalar(op: str) -> Scalar:
    return next(i for i in catalog.spec(op).inputs if i.name == VALUED[op][0] and isinstance(i, Scalar))


def calls() -> Iterator[tuple[str, str, float, torch.dtype]]:
    """Each value in each call; in a case the dtypes take turns from one value to the next."""
    for op, (_, texts) in VALUED.items():
        dtypes = catalog.spec(op).dtypes
        for first, text in enumerate(texts):
            for turn, value in enumerate(scalar(op).trials, first):
                yield op, text, value, dtypes[turn % len(dtypes)]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("op", "text", "value", "dtype"), list(calls()), ids=str)
def test_every_variant_is_within_the_bound_at_every_value(op: str, text: str, value: float, dtype: torch.dtype) -> None:
    used = dict(budgets(trial(op, text, VALUED[op][0], value, dtype)))
    assert {name.split("/")[0] for name in used} >= {"torch_ref", "triton", "cuda"}
    assert max(used.values()) <= 1, used


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("value", [0.3, 3.0, -3.0, 10.0, 100.0])
@pytest.mark.parametrize("text", ["x=5x1000", "x=300x5 axis=0"])
def test_softmax_of_large_numbers_is_within_the_bound_at_every_scale(text: str, value: float) -> None:
    used = dict(budgets(trial("softmax", text, "scale", value, torch.float32, large)))
    assert max(used.values()) <= 1, used


def rows(x: torch.Tensor) -> torch.Tensor:
    x[1, :3] = -math.inf
    x[2] = -math.inf
    x[3, 5] = math.inf
    return x


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -0.5, 3.0])
def test_softmax_has_nan_where_infinities_meet_a_scale_or_one_another(value: float) -> None:
    made = trial(
        "softmax", "x=5x300", "scale", value, torch.float32, lambda shape, rng: rows(torch.randn(shape, generator=rng))
    )
    assert made.references[0].isnan().any() and made.references[0][0].isfinite().all()
    used = dict(budgets(made))
    assert max(used.values()) <= 1, used
