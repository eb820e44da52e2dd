"""The kernels of a variant compiled for AMD GPUs, without one: the half of `compile_only` that Triton makes possible.

Whether they compute the right thing there is not known: no emulator and no AMD GPU has run them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging import resource_budgets
from kernelmux.conformance.judging.probe import Judge, Probe
from kernelmux.emulator import amdgcn
from kernelmux.emulator.launch_log import Launch, Recipe

LATER = "tensor descriptors, which become pointers there and take 5 to 13 s to compile: asked in tier full"


def examine(probe: Probe, launches: list[tuple[Trial, Launch]]) -> None:
    """Compile the launches for each AMD GPU that is due; what cannot be compiled is skipped with what it uses."""
    for arch in resource_budgets.amd_archs(probe.backend):
        for due in _due(probe, launches, arch):
            trial = replace(due.trial, note=f"{due.kernel} for {arch}")
            if probe.brief and due.recipe.descriptors:
                probe.skip(trial, LATER)
                continue
            if reasons := due.obstacles(arch):
                probe.skip(trial, "; ".join(reasons))
                continue
            with probe.judge(trial) as judge:
                _examine(judge, due, arch)


class Due(NamedTuple):
    """A kernel of a language that has AMD GPUs; obstacles: those of its recipe."""

    trial: Trial
    kernel: str
    recipe: Recipe
    obstacles: Callable[[str], list[str]]


def _due(probe: Probe, launches: list[tuple[Trial, Launch]], arch: str) -> list[Due]:
    """What is compiled for a GPU: everything, or in a brief run each kernel once, as the largest call launches it.

    The GPUs then take turns by the seed. CUDA C++ is compiled for none of them.
    """
    able = [
        Due(trial, launch.kernel, recipe, obstacles)
        for trial, launch in launches
        if (recipe := launch.recipe) and (obstacles := recipe.obstacles)
    ]
    if not probe.brief:
        return able
    listed = resource_budgets.amd_archs(probe.backend)
    if listed[probe.options.seed % len(listed)] != arch:
        return []
    return list({due.kernel: due for due in able}.values())


def _examine(judge: Judge, due: Due, arch: str) -> None:
    compiled = due.recipe.compile(arch)
    found = amdgcn.needs(compiled.log)
    judge.require(due.kernel in found, f"the assembly holds {', '.join(found)}, not {due.kernel}")
    need, probe, unit = found[due.kernel], judge.probe, amdgcn.GPUS[arch]
    budget = resource_budgets.amd_budget(probe.spec.name, probe.backend, probe.label, arch)
    judge.require(need.vgprs <= budget.vgprs, f"{need.vgprs} VGPRs, the budget is {budget.vgprs}")
    judge.require(need.scratch <= budget.scratch, f"{need.scratch} bytes of scratch, the budget is {budget.scratch}")
    lds = need.lds + (compiled.shared or 0)
    for amount, has, allowed, what in (
        (lds, unit.lds, budget.lds, "bytes of LDS"),
        (need.threads, unit.threads, budget.threads, "threads"),
    ):
        text = f"{amount} {what}, {arch} has {has} per workgroup"
        judge.require(amount <= allowed, text)
        if amount > has:
            judge.remark(f"{text}: {budget.reason}")
