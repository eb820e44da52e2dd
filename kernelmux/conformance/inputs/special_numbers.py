"""NaN, infinities, -0, subnormal and the largest numbers: where a spec defines what they give, and which they are."""

from __future__ import annotations

import math

import torch

from kernelmux.conformance.inputs.trials import Trial
from kernelmux.registry.dtypes import SHORT, smallest
from kernelmux.registry.spec import exact_arguments


def defined(trial: Trial) -> bool:
    """With a floating tensor, and where the spec says so."""
    return bool(trial.free) and trial.spec.special.on(trial.call.arguments)


def undefined(base: Trial, name: str) -> str | None:
    """Why the spec defines nothing for this value: "inf" speaks for both signs, "largest fp32" for one dtype."""
    reasons = base.spec.special.undefined
    keys = (name, name.lstrip("-"), name.split()[0], f"{name} {SHORT[base.dtype]}")
    return next((reasons[key] for key in keys if key in reasons), None)


def within_range(trial: Trial, outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Where finite terms add up to more than fp32 holds the accumulator may overflow: to an infinity, or to NaN.

    That is not judged; a finite number where the result itself is beyond fp32 is.
    """
    if not all(bool(x.to(torch.float64).isfinite().all()) for x in trial.tensors.values()):
        return outputs
    arguments = exact_arguments(trial.call)
    kept = []
    for model, ref, out in zip(trial.spec.errors, trial.references, outputs, strict=True):
        largest = torch.finfo(torch.float32).max
        beyond = model.magnitude(*arguments).to(ref).expand_as(ref) > largest
        beyond &= ~(out.to(ref).isfinite() & (ref.abs() > 2 * largest))
        kept.append(lying(torch.where(beyond, ref.to(out.dtype), out), out))
    return tuple(kept)


def lying(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """x as another tensor of its shape lies in memory: channels-last where that is."""
    return x if x.stride() == like.stride() else torch.empty_like(like, dtype=x.dtype).copy_(x)


def values_of(name: str, dtype: torch.dtype) -> tuple[float, ...]:
    """The numbers of a name in a format; there are small, middling and large subnormal ones.

    Of a result at the largest number itself an infinity is right as well, of half of it not.
    """
    info, tiny = torch.finfo(dtype), smallest(dtype)
    if name == "subnormal":
        return tiny, 0.75 * info.smallest_normal, -(info.smallest_normal - tiny)
    if name == "largest":
        return float(info.max), float(info.max) / 2
    return ({"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "-0": -0.0}[name],)
