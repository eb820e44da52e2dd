"""Inputs that reach beyond 2^31 elements: an index kept in 32 bits wraps around."""

from __future__ import annotations

import torch

from kernelmux.conformance import layouts
from kernelmux.conformance.check import Check
from kernelmux.conformance.layouts import Strides
from kernelmux.conformance.probe import Probe
from kernelmux.conformance.trials import Trial
from kernelmux.registry.backend import Backend

FAR = 2**31  # elements


def run(probe: Probe) -> None:
    if probe.spec.hosted:
        probe.skip_all("its input is pinned host memory, of which nobody spares gigabytes")
        return
    for base in probe.sample(2):
        for name, x in base.tensors.items():
            if any(n > 1 for n in x.shape):
                _far_apart(probe, base, name, x)


def _far_apart(probe: Probe, base: Trial, name: str, x: torch.Tensor) -> None:
    """The first axis of one input that has steps takes them so far that its last slice lies beyond 2^31 elements."""
    strides = far_strides(tuple(x.shape))
    need = layouts.extent(x.shape, strides) * x.element_size()
    note = f"{name}: strides {strides}"
    if torch.cuda.mem_get_info(x.device)[0] < need * 1.2:
        probe.skip(base.changed(note), f"needs {need / 2**30:.0f} GiB of free device memory")
        return
    trial = base.changed(note, **{name: layouts.laid_out(x, strides)})
    if probe.able(trial):
        with probe.judge(trial) as judge:
            judge.accurate(judge.call())


def far_strides(shape: tuple[int, ...]) -> Strides:
    """Contiguous but for the first axis longer than 1."""
    axis = next(i for i, n in enumerate(shape) if n > 1)
    strides = list(layouts.contiguous_strides(shape))
    strides[: axis + 1] = [FAR // (shape[axis] - 1) + 1] * (axis + 1)
    return tuple(strides)


def _applies(backend: Backend, device: str) -> bool:
    return device == "cuda"


CHECK = Check(run=run, column="64-bit", applies=_applies, summary="inputs that reach beyond 2^31 elements")
