"""The kernels of a variant compiled for AMD GPUs, without one: the half of `compile_only` that Triton makes possible.

Whether they compute the right thing there is not known: no emulator and no AMD GPU has run them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kernelmux.conformance import budgets
from kernelmux.conformance.probe import Judge, Probe
from kernelmux.conformance.trials import Trial
from kernelmux.emulator.compilers import amdgcn
from kernelmux.emulator.compilers.launch_log import Launch

Pair = tuple[Trial, Launch]
LATER = "tensor descriptors, which become pointers there and take 5 to 13 s to compile: asked in tier full"


def examine(probe: Probe, launches: list[Pair]) -> None:
    """Compile the launches for each AMD GPU that is due; what cannot be compiled is skipped with what it uses."""
    for arch in budgets.amd_archs(probe.backend):
        for trial, launch in _due(probe, launches, arch):
            assert launch.recipe is not None and launch.recipe.obstacles is not None
            trial = replace(trial, note=f"{launch.kernel} for {arch}")
            if probe.brief and launch.recipe.descriptors:
                probe.skip(trial, LATER)
                continue
            if reasons := launch.recipe.obstacles(arch):
                probe.skip(trial, "; ".join(reasons))
                continue
            with probe.judge(trial) as judge:
                _examine(judge, launch, arch)


def _due(probe: Probe, launches: list[Pair], arch: str) -> Iterator[Pair]:
    """What is compiled for a GPU: everything, or in a brief run each kernel once, as the largest call launches it.

    The GPUs then take turns by the seed. CUDA C++ is compiled for none of them.
    """
    able = [pair for pair in launches if pair[1].recipe and pair[1].recipe.obstacles]
    if not probe.brief:
        return iter(able)
    listed = budgets.amd_archs(probe.backend)
    if listed[probe.options.seed % len(listed)] != arch:
        return iter(())
    return iter({launch.kernel: (trial, launch) for trial, launch in able}.values())


def _examine(judge: Judge, launch: Launch, arch: str) -> None:
    assert launch.recipe is not None
    compiled = launch.recipe.compile(arch)
    found = amdgcn.needs(compiled.log)
    judge.require(launch.kernel in found, f"the assembly holds {', '.join(found)}, not {launch.kernel}")
    need, probe, unit = found[launch.kernel], judge.probe, amdgcn.GPUS[arch]
    budget = budgets.amd_budget(probe.spec.name, probe.backend, probe.label, arch)
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
