"""NaN, infinities, -0, the smallest subnormal, the largest number: at the first, the last and a tile-edge position."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from kernelmux.conformance.check import Check
from kernelmux.conformance.probe import Probe
from kernelmux.conformance.trials import Trial
from kernelmux.registry.dtypes import SHORT, smallest
from kernelmux.registry.spec import SPECIAL, exact_arguments


def value_of(name: str, dtype: torch.dtype) -> float:
    """The value of a name in a format."""
    fixed = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "-0": -0.0}
    if name in fixed:
        return fixed[name]
    return smallest(dtype) if name == "subnormal" else float(torch.finfo(dtype).max)


def run(probe: Probe) -> None:
    undefined = probe.spec.special.undefined
    for base in probe.sample(2 if probe.emulated else 6, least=64, where=_defined):
        for name in SPECIAL:
            reason = (  # "inf" speaks for both signs, "largest fp32" for one dtype
                undefined.get(name) or undefined.get(name.lstrip("-")) or undefined.get(f"{name} {SHORT[base.dtype]}")
            )
            for trial in planted(base, name):
                if reason:
                    probe.skip(trial, f"{name}: {reason}")
                elif probe.able(trial):
                    with probe.judge(trial) as judge:
                        judge.accurate(_within_range(trial, judge.call()))


def _defined(trial: Trial) -> bool:
    return trial.dtype.is_floating_point and trial.spec.special.on(trial.call.arguments)


def _within_range(trial: Trial, outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Where finite terms add up to more than fp32 holds the accumulator may overflow: that is not judged."""
    if not all(bool(x.isfinite().all()) for x in trial.tensors.values()):
        return outputs
    arguments = exact_arguments(trial.call)
    kept = []
    for model, ref, out in zip(trial.spec.errors, trial.references, outputs, strict=True):
        beyond = model.magnitude(*arguments).to(ref).expand_as(ref) > torch.finfo(torch.float32).max
        kept.append(torch.where(beyond, ref.to(out.dtype), out) if out.shape == ref.shape else out)
    return tuple(kept)


def planted(base: Trial, name: str) -> Iterator[Trial]:
    """The call with the value in each tensor in turn: at three places together, NaN also at each, -inf in a row."""
    for tensor, x in base.tensors.items():
        spots = positions(x)
        yield _with(base, tensor, x, name, list(spots.values()), f"{name} in {tensor}: {', '.join(spots)}")
        if name == "nan" and len(spots) > 1:
            for place, index in spots.items():
                yield _with(base, tensor, x, name, [index], f"{name} in {tensor}: {place}")
        if name == "-inf" and x.dim() > 1:
            yield _with(base, tensor, x, name, list(range(x.shape[-1])), f"{name} in {tensor}: whole first row")


def positions(x: torch.Tensor) -> dict[str, int]:
    """Flat positions: the first and the last element, and one at a power of two in the middle row."""
    n = x.shape[-1] if x.dim() else 1
    rows = x.numel() // max(n, 1)
    edge = (rows // 2) * n + (1 << max(n - 1, 1).bit_length() - 1) % n
    named = {"first": 0, "last": x.numel() - 1, "tile edge": edge}
    return {name: p for i, (name, p) in enumerate(named.items()) if p not in list(named.values())[:i]}


def _with(base: Trial, tensor: str, x: torch.Tensor, name: str, places: list[int], note: str) -> Trial:
    changed = x.clone().flatten()
    changed[torch.tensor(places, device=x.device)] = value_of(name, x.dtype)
    changed = changed.reshape(x.shape)
    pinned = x.device.type == "cpu" and torch.cuda.is_available() and x.is_pinned()
    return base.changed(note, **{tensor: changed.pin_memory() if pinned else changed})


CHECK = Check(
    run=run, column="values", summary="NaN, infinities, -0, subnormal and largest numbers give what the reference gives"
)
