"""Inputs in every layout a tensor can have: strided, misaligned, expanded, overlapping; each alone and all together."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kernelmux.conformance.check import Check
from kernelmux.conformance.layouts import LAYOUTS
from kernelmux.conformance.probe import Probe
from kernelmux.conformance.trials import Trial


def run(probe: Probe) -> None:
    for turn, base in enumerate(probe.sample(3 if probe.emulated else 6)):
        everything = (turn == 0 or not probe.emulated) and probe.options.tier != "smoke"
        for trial in arrangements(base, everything):
            if probe.able(trial):
                with probe.judge(trial) as judge:
                    judge.accurate(judge.call())


def arrangements(base: Trial, everything: bool) -> Iterator[Trial]:
    """The call with its tensors in every layout: together and, where there are several (and `everything`), alone."""
    names = list(base.tensors)
    for layout in LAYOUTS:
        made = {name: new for name, x in base.tensors.items() if (new := layout.of(x)) is not None}
        if made:
            yield _trial(base, made, f"{', '.join(made)}: {layout.name}", layout.same)
        for name in made if everything and len(names) > 1 and len(made) > 1 else ():
            yield _trial(base, {name: made[name]}, f"{name}: {layout.name}", layout.same)


def _trial(base: Trial, made: dict[str, torch.Tensor], note: str, same: bool) -> Trial:
    trial = base.changed(note, **made)
    if same:
        trial.__dict__["references"] = base.references  # the values are the same
    return trial


CHECK = Check(
    run=run, column="layout", summary="strided, misaligned, expanded and overlapping inputs, each and all together"
)
