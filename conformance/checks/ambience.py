"""A call gives the same result whatever else is set in the process, and leaves all of that as it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from kernelmux.conformance import ambience, origins
from kernelmux.conformance.check import Check
from kernelmux.conformance.probe import Failed, Judge, Probe
from kernelmux.registry import autocast, dispatch

Result = tuple[tuple[Any, ...], list[str]]
SEEDS = (20, 21)  # of the global generator; a result that depends on it shows, and a generator that is seeded anew


def run(probe: Probe) -> None:
    for trial in probe.sample(2 if probe.emulated else 6):
        with probe.judge(trial) as judge:
            first = judge.call()  # compiled and planned: what an import changes is not the call's doing
            judge.accurate(first)
            for seed in SEEDS:
                with _told(f"torch.manual_seed({seed})"), torch.random.fork_rng():
                    torch.manual_seed(seed)
                    _same(judge, first, _call(judge, ()))
            for names in _settings(judge):
                with _told(", ".join(names)):
                    _same(judge, first, _call(judge, names), exactly=not set(ambience.ROUNDING) & set(names))


@contextmanager
def _told(settings: str) -> Iterator[None]:
    """What goes wrong inside is told together with the settings that it happened under."""
    try:
        yield
    except Failed as failure:
        raise Failed(f"with {settings}: {failure}") from None
    except Exception as error:
        raise Failed(f"with {settings}: {origins.raised(error)}") from error


def _settings(judge: Judge) -> Iterator[tuple[str, ...]]:
    """Each setting alone where calls are fast, all that go together at once where they are emulated.

    Anomaly detection is there to raise where a gradient is NaN: it is set only where none is. Autocast is there to change
    dtypes: it is set only where its rules leave those of this call as they are.
    """
    alone = () if judge.probe.emulated else tuple((n,) for n in ambience.SETTINGS)
    finite = all(bool(r.isfinite().all()) for r in judge.trial.references)
    left = {ambience.ANOMALY: not finite, ambience.AUTOCAST: _cast(judge)}
    for names in (*alone, *ambience.TOGETHER):
        if kept := tuple(n for n in names if not left.get(n)):
            yield kept


def _cast(judge: Judge) -> bool:
    """Whether autocast would give the call other tensors."""
    device, values = judge.probe.device, judge.trial.values
    with ambience.within((ambience.AUTOCAST,), device):
        found = autocast.cast(judge.trial.spec, values, device.type)
    return any(got is not value for got, value in zip(found, values, strict=True))


def _call(judge: Judge, names: tuple[str, ...]) -> Result:
    """The outputs of the trial's call under these settings, and what it changed around itself."""
    probe, trial = judge.probe, judge.trial
    with ambience.within(names, probe.device), probe.environment(grad="grad mode" in names):
        before = ambience.snapshot()
        result = dispatch.call(probe.spec, trial.values, probe.label)
        changed = ambience.differences(before, ambience.snapshot())
        if probe.device.type == "cuda":
            torch.cuda.synchronize(probe.device)
    return result if isinstance(result, tuple) else (result,), changed


def _same(judge: Judge, first: Sequence[torch.Tensor], result: Result, exactly: bool = True) -> None:
    """The call has changed nothing around it and gave the first result; judged where the settings no longer hold."""
    outputs, changed = result
    judge.require(not changed, lambda: f"the call changed {'; '.join(changed)}")
    judge.well_formed(outputs)
    for output, got, want in zip(judge.trial.spec.outputs, outputs, first, strict=True):
        judge.require(not got.requires_grad, f"{output.name} requires_grad without an input that does")
        if exactly and judge.probe.implementation.deterministic:
            judge.equal(output.name, got, want)
    judge.accurate(outputs)


CHECK = Check(
    run=run, column="ambien", summary="same bits whatever is set around the call, and nothing around it changed"
)
