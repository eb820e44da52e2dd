"""Every kernel a variant launches compiles for the other GPUs it claims, without spills and within their limits.

Triton's are compiled for AMD GPUs as well (`conformance/amd.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kernelmux import emulator
from kernelmux.conformance import amd, budgets, trials
from kernelmux.conformance.budgets import Budget
from kernelmux.conformance.check import Check
from kernelmux.conformance.probe import Judge, Probe
from kernelmux.conformance.trials import Trial
from kernelmux.emulator.compilers import nvrtc
from kernelmux.emulator.compilers.launch_log import Launch
from kernelmux.emulator.compilers.resources import Resources, multiprocessor, resources
from kernelmux.registry.backend import Backend
from kernelmux.registry.cases import Case

EMULATED = ("sm_90a",)  # the GPU that the emulator stands for: enough for a first look
ODD = 32  # a length beyond it needs more than one of the narrowest tiles


def run(probe: Probe) -> None:
    launches = _launches(probe)
    if not launches and not probe.records:
        probe.skip_all("launches no kernel: the driver copies")
    for arch in EMULATED if probe.options.tier == "smoke" else budgets.archs():
        for trial, launch in launches if arch in EMULATED else _for_others(probe, launches, arch):
            if reasons := _refusals(probe, trial, arch):
                probe.skip(replace(trial, note=arch), "; ".join(reasons))
                continue
            with probe.judge(replace(trial, note=f"{launch.kernel} for {arch}")) as judge:
                _examine(judge, launch, arch)
    if probe.options.tier != "smoke":
        amd.examine(probe, launches)


def _for_others(probe: Probe, launches: list[tuple[Trial, Launch]], arch: str) -> list[tuple[Trial, Launch]]:
    """What is compiled for a GPU other than the emulated one: in a brief run the dtypes of the first case in turn.

    Each of these kernels is compiled for one of the GPUs that it can run on; odd lengths and workloads for all of them.
    """
    if not probe.brief or not launches:
        return launches
    first, dtypes = launches[0][0].case, list(dict.fromkeys(trial.dtype for trial, _ in launches))
    others = [other for other in budgets.archs() if other not in EMULATED]

    def due(trial: Trial) -> bool:
        able = [other for other in others if not _refusals(probe, trial, other)]
        turn = dtypes.index(trial.dtype) + probe.options.seed
        return trial.case != first or arch not in able or able[turn % len(able)] == arch

    return [pair for pair in launches if due(pair[0])]


def _launches(probe: Probe) -> list[tuple[Trial, Launch]]:
    """Each different kernel that the trials launch, with the largest shared memory it was given; none of them runs."""
    small = [] if probe.verified else [pair for trial in _small(probe) for pair in _recorded(probe, trial)]
    with nvrtc.with_machine_code():
        large = [pair for trial in _large(probe) for pair in _recorded(probe, trial)] if small or probe.verified else []
    if probe.verified and not large:
        small = [pair for trial in _small(probe) for pair in _recorded(probe, trial)]
    found: dict[object, tuple[Trial, Launch]] = {}
    for trial, launch in (*small, *large):
        known = found.get(key := (launch.kernel, launch.compiled_by.key))
        if known is None or known[1].shared < launch.shared:
            found[key] = (trial, launch)
    return list(found.values())


def _recorded(probe: Probe, trial: Trial) -> list[tuple[Trial, Launch]]:
    with emulator.recorder(run=False) as log:
        probe.call(trial.values)
    return [(trial, launch) for launch in log]


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


def _refusals(probe: Probe, trial: Trial, arch: str) -> list[str]:
    """Why the variant would not run on such a GPU: declared conditions, the capability among them."""
    number = int(arch.removeprefix("sm_").rstrip("af"))
    return probe.implementation.reasons(replace(trial.call, capability=divmod(number, 10)))


def _examine(judge: Judge, launch: Launch, arch: str) -> None:
    compiled = launch.compiled_by.compile(arch)
    found = resources(compiled.image, compiled.log)
    judge.require(launch.kernel in found, f"the machine code holds {', '.join(found)}, not {launch.kernel}")
    need, limits, probe = found[launch.kernel], multiprocessor(arch), judge.probe
    budget = budgets.budget(probe.spec.name, probe.backend, probe.label, arch)
    shared = need.shared + (launch.shared if compiled.shared is None else compiled.shared)
    judge.require(need.registers <= budget.registers, f"{need.registers} registers, the budget is {budget.registers}")
    judge.require(_spills(need) <= budget.spills, lambda: _spill_text(need, budget))
    judge.require(
        shared <= limits.shared_per_block,
        f"{shared} bytes of shared memory, {arch} has {limits.shared_per_block} per block",
    )


def _spills(need: Resources) -> int:
    return (need.spill_stores or 0) + (need.spill_loads or 0)


def _spill_text(need: Resources, budget: Budget) -> str:
    stores, loads = need.spill_stores, need.spill_loads
    return f"spills {stores} bytes of stores and {loads} of loads at {need.registers} registers, budget {budget.spills}"


def _applies(backend: Backend, device: str) -> bool:
    return backend.emulates and device == "cpu"


CHECK = Check(
    run=run,
    column="compil",
    applies=_applies,
    summary="compiles for sm_80, sm_90a and sm_100a, Triton for gfx942 and gfx950 too: no spills, and it fits",
)
