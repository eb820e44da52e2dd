"""Every kernel a variant launches, as each GPU that it claims, compiles for that GPU, without spills and within its limits.

Triton's are compiled for AMD GPUs as well (`kernelmux/conformance/judging/amd.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kernelmux import emulator
from kernelmux.conformance.check import Check
from kernelmux.conformance.inputs import trials
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging import amd, resource_budgets
from kernelmux.conformance.judging.probe import Judge, Probe
from kernelmux.conformance.judging.resource_budgets import ResourceBudget
from kernelmux.emulator import nvrtc
from kernelmux.emulator.launch_log import Launch
from kernelmux.emulator.resources import Resources, multiprocessor, resources
from kernelmux.registry.backend import Backend
from kernelmux.registry.cases import Case
from kernelmux.registry.util import cards

ODD = 32  # a length beyond it needs more than one of the narrowest tiles


def run(probe: Probe) -> None:
    """Ask everything of the emulated GPU, and of the others what is due; each is launched as that GPU would launch it."""
    home, asked = cards.emulated().arch, _trials(probe)
    if any(
        launch.recipe is None for trial in asked[:1] if probe.able(trial) for launch in _recorded(probe, trial, home)
    ):
        probe.skip_all("its kernels are compiled in a process of its own, for the GPU that the emulator stands for")
        return
    launches = _checked(probe, asked, home)
    if not launches and not probe.records:
        probe.skip_all("launches no kernel")
    if probe.options.tier == "smoke":  # a first look
        return
    for arch, due in _shared_out(probe, asked, home).items():
        with cards.standing_for(arch):
            _checked(probe, due, arch)
    amd.examine(probe, launches)


def _checked(probe: Probe, asked: list[Trial], arch: str) -> list[tuple[Trial, Launch]]:
    """Judge what these trials launch on the GPU that the emulator stands for; the launches."""
    launches = _launches(probe, asked, arch)
    for trial, launch in launches:
        with probe.judge(replace(trial, note=f"{launch.kernel} for {arch}")) as judge:
            _examine(judge, launch, arch)
    return launches


def _shared_out(probe: Probe, asked: list[Trial], home: str) -> dict[str, list[Trial]]:
    """What each GPU beside the emulated one is asked: everything, or in a brief run each trial of one of them in turn.

    The GPUs that can run a trial take turns, beginning with the one that the seed says.
    """
    others = [arch for arch in resource_budgets.archs() if arch != home]
    if not probe.brief:
        return dict.fromkeys(others, asked)
    found: dict[str, list[Trial]] = {arch: [] for arch in others}
    for turn, trial in enumerate(asked):
        if able := [arch for arch in others if not _refusals(probe, trial, arch)]:
            found[able[(turn + probe.options.seed) % len(able)]].append(trial)
    return found


def _launches(probe: Probe, asked: list[Trial], arch: str) -> list[tuple[Trial, Launch]]:
    """Each different kernel that the trials launch, with the largest shared memory it was given; none of them runs."""
    found: dict[object, tuple[Trial, Launch]] = {}
    for trial in asked:
        if reasons := probe.reasons(trial):
            probe.skip(replace(trial, note=arch), "; ".join(reasons))
            continue
        for launch in _recorded(probe, trial, arch):
            known = found.get(key := (launch.kernel, launch.compiled_by.key))
            if known is None or known[1].shared < launch.shared:
                found[key] = (trial, launch)
    return list(found.values())


def _recorded(probe: Probe, trial: Trial, arch: str) -> list[Launch]:
    """What a trial launches; what does not compile, or asks for more than a block may have, is a failure."""
    log: list[Launch]
    try:
        with emulator.recorder(run=False) as log, nvrtc.with_machine_code():
            probe.call(trial.values)
    except Exception as error:
        with probe.judge(replace(trial, note=f"for {arch}")):
            raise error
    return log


def _trials(probe: Probe) -> list[Trial]:
    """Small trials and workloads. Of what is `verified` workloads alone, or the first trial of one that can run none."""
    small = [] if probe.verified else _small(probe)
    large = list(_large(probe)) if probe.verified or _launches_any(probe, small) else []
    return [*small, *large] or _small(probe)


def _launches_any(probe: Probe, asked: list[Trial]) -> bool:
    """Whether one of these calls launches a kernel: a large call of a variant that launches none would run."""
    home = cards.emulated().arch
    return any(_recorded(probe, trial, home) for trial in asked if not probe.reasons(trial))


def _small(probe: Probe) -> list[Trial]:
    """The first case that the variant can run, in every dtype, and one with an odd length, which takes masks.

    Of what is `verified` the first alone, where it can run no workload: other checks have compiled the like of it.
    """
    cases = [c for c in probe.cases if all(0 not in shape for shape in c.shapes.values())]
    odd = [c for c in cases if any(n > ODD and n % 2 for shape in c.shapes.values() for n in shape)]
    first = _able(probe, cases)
    return first[:1] if probe.verified else [*first, *_able(probe, odd)[-1:]]


def _able(probe: Probe, cases: list[Case]) -> list[Trial]:
    """The first of the cases that the variant can run at all, in every dtype in which it can."""
    for case in cases:
        made = [probe.make(case, dtype) for dtype in probe.options.dtypes_of(probe.spec, case)]
        if able := [trial for trial in made if not probe.reasons(trial)]:
            return able
    return []


def _large(probe: Probe) -> Iterator[Trial]:
    """Workloads, on memory that is never touched: these choose the tiles that matter for speed."""
    thorough = probe.options.tier in ("full", "huge")
    workloads = () if probe.options.cases else probe.spec.workloads
    for case in workloads if thorough else workloads[:1]:
        formats = probe.options.dtypes_of(probe.spec, case)
        for dtype in formats if thorough else formats[-1:]:
            given = trials.values(probe.spec, case, probe.spec.untouched(case, dtype), probe.device)
            trial = Trial(probe.spec, case.name, case.text, dtype, probe.options.seed, given)
            if not probe.reasons(trial):
                yield trial


def _refusals(probe: Probe, trial: Trial, arch: str) -> tuple[str, ...]:
    """Why the variant would not run on such a GPU: declared conditions, the capability among them."""
    with cards.standing_for(arch):
        return probe.reasons(trial)


def _examine(judge: Judge, launch: Launch, arch: str) -> None:
    compiled = launch.compiled_by.compile(arch)
    found = resources(compiled.image, compiled.log)
    judge.require(launch.kernel in found, f"the machine code holds {', '.join(found)}, not {launch.kernel}")
    need, limits, probe = found[launch.kernel], multiprocessor(arch), judge.probe
    budget = resource_budgets.budget(probe.spec.name, probe.backend, probe.label, arch)
    shared = need.shared + (launch.shared if compiled.shared is None else compiled.shared)
    judge.require(need.registers <= budget.registers, f"{need.registers} registers, the budget is {budget.registers}")
    judge.require(_spills(need) <= budget.spills, lambda: _spill_text(need, budget))
    judge.require(
        shared <= limits.shared_per_block,
        f"{shared} bytes of shared memory, {arch} has {limits.shared_per_block} per block",
    )


def _spills(need: Resources) -> int:
    return (need.spill_stores or 0) + (need.spill_loads or 0)


def _spill_text(need: Resources, budget: ResourceBudget) -> str:
    stores, loads = need.spill_stores, need.spill_loads
    return f"spills {stores} bytes of stores and {loads} of loads at {need.registers} registers, budget {budget.spills}"


def _applies(backend: Backend, device: str) -> bool:
    return backend.emulates and device == "cpu"


CHECK = Check(
    run=run,
    column="compil",
    applies=_applies,
    summary="compiles for every GPU from sm_75 to sm_121a, Triton for gfx942 and gfx950 too: no spills, and it fits",
)
