"""A call gives the same result whatever else is set in the process, and leaves all of that as it was.

Where torch asks for deterministic algorithms, kernels give equal bits or are refused, and their backend runs others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from kernelmux.candidate import global_state
from kernelmux.conformance.check import Check
from kernelmux.conformance.failures import failure_source
from kernelmux.conformance.judging import first_call
from kernelmux.conformance.judging.probe import Failed, Judge, Probe
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.choice import determinism
from kernelmux.registry.errors import UnsupportedError
from kernelmux.registry.interop import autocast

Result = tuple[tuple[Any, ...], list[str]]
SEEDS = (20, 21)  # of the global generator; a result that depends on it shows, and a generator that is seeded anew


def run(probe: Probe) -> None:
    for trial in probe.sample(2 if probe.emulated else 6):
        with probe.judge(trial) as judge:
            first = judge.call()  # compiled and planned: what the first call of all changes, `first_call` knows
            judge.accurate(first)
            early = first_call.changed(probe.spec.name, probe.label)
            judge.require(not early, lambda: f"the first call in this process changed {'; '.join(early)}")  # noqa: B023
            for seed in SEEDS:
                with _with_settings(f"torch.manual_seed({seed})"), torch.random.fork_rng():
                    torch.manual_seed(seed)
                    _same(judge, first, _call(judge, ()))
            for names in _settings(judge):
                with _with_settings(", ".join(names)):
                    _same(judge, first, _call(judge, names), exactly=not set(global_state.ROUNDING) & set(names))
            if not registered.composite(probe.backend):  # torch follows its flag by itself
                with _with_settings("torch.use_deterministic_algorithms(True)"):
                    _deterministic(judge, first)


@contextmanager
def _with_settings(settings: str) -> Iterator[None]:
    """What goes wrong inside is told together with the settings that it happened under."""
    try:
        yield
    except Failed as failure:
        raise Failed(f"with {settings}: {failure}") from None
    except Exception as error:
        raise Failed(f"with {settings}: {failure_source.raised(error)}") from error


def _settings(judge: Judge) -> Iterator[tuple[str, ...]]:
    """Each setting alone where calls are fast, all that go together at once where they are emulated.

    Anomaly detection is there to raise where a gradient is NaN: it is set only where none is. Autocast is there to change
    dtypes: it is set only where its rules leave those of this call as they are. Deterministic algorithms are there to
    refuse a variant that gives other bits: see `_deterministic`.
    """
    alone = () if judge.probe.emulated else tuple((n,) for n in global_state.SETTINGS)
    finite = all(bool(r.isfinite().all()) for r in judge.trial.references)
    varies = registered.varies(judge.probe.backend, judge.probe.implementation)
    left = {global_state.ANOMALY: not finite, global_state.AUTOCAST: _cast(judge), global_state.DETERMINISTIC: varies}
    for names in (*alone, *global_state.TOGETHER):
        if kept := tuple(n for n in names if not left.get(n)):
            yield kept


def _cast(judge: Judge) -> bool:
    """Whether autocast would give the call other tensors."""
    device, values = judge.probe.device, judge.trial.values
    with global_state.within((global_state.AUTOCAST,), device):
        found = autocast.cast(judge.trial.spec, values, device.type)
    return any(got is not value for got, value in zip(found, values, strict=True))


def _call(judge: Judge, names: tuple[str, ...]) -> Result:
    """The outputs of the trial's call under these settings, and what it changed around itself."""
    probe, trial = judge.probe, judge.trial
    with global_state.within(names, probe.device), probe.environment(grad="grad mode" in names):
        before = global_state.snapshot()
        result = dispatch.call(probe.spec, trial.values, probe.label)
        changed = global_state.differences(before, global_state.snapshot())
        if probe.device.type == "cuda":
            torch.cuda.synchronize(probe.device)
    return result if isinstance(result, tuple) else (result,), changed


def _deterministic(judge: Judge, first: Sequence[torch.Tensor]) -> None:
    """Where torch does not only warn: the bits of the first call again, or a refusal; the backend keeps to the former.

    Where calls are emulated the settings have asked for those bits.
    """
    probe, spec, declared = judge.probe, judge.probe.spec, judge.probe.implementation.deterministic
    times = 3 if not probe.emulated else 1 - declared
    with determinism.asked_for(), probe.environment():
        for verdict in dispatch.verdicts(judge.trial.call, probe.backend):
            judge.require(not (verdict.able and verdict.varies), f"{verdict.name} is not deterministic, but may run")
        try:
            results = [dispatch.call(spec, judge.trial.values, probe.label) for _ in range(times)]
        except RuntimeError as error:  # ours is one, and torch raises others for operators of its own
            if determinism.FLAG not in str(error):
                raise
            ours = isinstance(error, UnsupportedError)
            judge.require(not (declared and ours), f"declares no other bits: expected the call to run, got {error}")
            return
    judge.require(declared, "is not deterministic: expected an UnsupportedError, but it ran")
    for result in results:
        _same(judge, first, (result if isinstance(result, tuple) else (result,), []))


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
