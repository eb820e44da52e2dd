"""What tier ci leaves out where calls are emulated: dtypes come in turn, and every one of them still comes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernelmux.conformance.checks import compile_only, layout, memory, repeatability
from kernelmux.conformance.inputs.trials import Trial
from kernelmux.conformance.judging import amd
from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.options import Options
from kernelmux.emulator.launch_log import CompiledModule, Launch, Recipe
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered

pytestmark = pytest.mark.skipif(
    bool(registered.unavailable("triton", torch.device("cpu"))), reason="Triton is not there"
)
Pairs = set[tuple[str, torch.dtype]]


def probe(op: str = "softmax", backend: str = "triton", check: str = "accuracy", **options: Any) -> Probe:
    ladder = list(registered.variants(backend, op).items())
    variant, implementation = ladder[
        -1 if registered.composite(backend) else 0
    ]  # of torch's the one that takes any call
    return Probe(catalog.spec(op), check, backend, variant, implementation, Options(**options))


def asked(found: Probe) -> Pairs:
    return {(t.case, t.dtype) for t in found.all()}


def product(found: Probe) -> Pairs:
    return {(case.name, dtype) for case, dtype in found.pairs()}


def test_a_case_comes_in_one_dtype_and_those_of_tier_smoke_in_each() -> None:
    found = probe()
    times = Counter(case for case, _ in asked(found))
    smoke = {case.name for case in found.cases if case.tier == "smoke"}
    assert set(times) == {case.name for case in found.cases} and {dtype for _, dtype in asked(found)} == set(
        found.spec.dtypes
    )
    assert smoke and all(times[name] == (len(found.spec.dtypes) if name in smoke else 1) for name in times)


def test_as_many_seeds_as_dtypes_ask_for_every_pair() -> None:
    seeds = range(len(probe().spec.dtypes))
    assert set[tuple[str, torch.dtype]]().union(*(asked(probe(seed=seed)) for seed in seeds)) == product(probe())


@pytest.mark.parametrize("more", [{"cases": ("x37x1000",)}, {"dtypes": ("bf16",)}, {"tier": "full", "cases": ("x3*",)}])
def test_what_is_asked_for_comes_in_every_dtype(more: dict[str, Any]) -> None:
    assert asked(probe(**more)) == product(probe(**more))


def test_what_is_not_emulated_comes_in_every_dtype() -> None:
    assert asked(probe(backend="torch_ref")) == product(probe())


VERIFIED: dict[str, Any] = {"tier": "smoke", "verified": ("linear/triton/simple",)}


def test_of_what_a_gpu_has_verified_one_dtype_of_each_size_is_emulated_and_others_with_other_seeds() -> None:
    found = [probe("linear", seed=seed, **VERIFIED) for seed in range(3)]
    sizes = [sorted(dtype.itemsize for _, dtype in asked(one)) for one in found]
    assert all(one.verified and len(one.cases) == 1 for one in found) and sizes == [[2, 4]] * 3
    assert set[tuple[str, torch.dtype]]().union(*map(asked, found)) == product(found[0])
    assert asked(probe("linear", tier="smoke")) == product(found[0])


def test_of_what_a_gpu_has_verified_fewer_short_calls_and_kernels_are_emulated() -> None:
    every, some = probe("linear", check="memory", tier="smoke"), probe("linear", check="memory", **VERIFIED)
    thin = [{trial.text for trial in memory._thin(found, found.sample(1))} for found in (every, some)]
    assert len(thin[1]) == 1 and thin[1] < thin[0]
    assert len(compile_only._small(some)) == 1 < len(compile_only._small(every))


def test_of_what_a_gpu_has_verified_one_layout_is_emulated_and_others_with_other_seeds() -> None:
    def notes(**options: Any) -> set[str]:
        found = probe("linear", check="memory", **options)
        return {note for note, _ in memory._with_gaps(found, found.sample(1)[0])}

    assert notes(tier="smoke") == set(memory.FEW)
    some = [notes(seed=seed, **VERIFIED) for seed in range(len(memory.FEW))]
    assert [len(one) for one in some] == [1] * len(memory.FEW) and set[str]().union(*some) == set(memory.FEW)


def test_of_what_a_gpu_has_verified_a_workload_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small call only where there is no workload that it can run."""

    def compiled(**options: Any) -> set[str]:
        return {trial.case for trial in compile_only._trials(probe("linear", check="compile_only", **options))}

    workload = catalog.spec("linear").workloads[0].name
    assert compiled(**VERIFIED) == {workload} < compiled(tier="smoke")
    monkeypatch.setattr(compile_only, "_large", lambda found: iter(()))
    assert compiled(**VERIFIED) and workload not in compiled(**VERIFIED)


def test_of_what_a_gpu_has_verified_shorter_sums_are_repeated_if_these_are_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def terms(least: int = 2, **options: Any) -> set[int]:
        monkeypatch.setattr(repeatability, "_several_blocks", lambda found, t: t.call.axes["K"] >= least)
        found = probe("linear", check="repeatability", **options)
        return {trial.call.axes["K"] for trial in repeatability._long(found)}

    long = repeatability.LONG[True]
    assert terms(tier="smoke") == {long} and terms(**VERIFIED) == {repeatability.LONG_VERIFIED}
    assert terms(least=long, **VERIFIED) == {long}


def test_a_shorter_sum_that_is_split_asks_for_no_kernel_of_the_longer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def several(found: Probe, trial: Trial) -> bool:
        asked.append(trial.call.axes["K"])
        return True

    monkeypatch.setattr(repeatability, "_several_blocks", several)
    list(repeatability._long(probe("linear", check="repeatability", **VERIFIED)))
    assert asked and set(asked) == {repeatability.LONG_VERIFIED}


def launches(found: Probe, *cases: str) -> list[tuple[Any, Launch]]:
    """A launch for each of the cases in every dtype."""
    made = [found.make(found.spec.case(text), dtype) for text in cases for dtype in found.spec.dtypes]
    return [(trial, Launch("kernel", (1, 1, 1), (32, 1, 1), 0, None)) for trial in made]


def test_other_gpus_take_turns_and_in_tier_full_each_compiles_everything() -> None:
    found = probe(check="compile_only")
    asked = [trial for trial, _ in launches(found, "x=4x100", "x=37x1001")]
    shared = compile_only._shared_out(found, asked, "sm_90a")
    assert "sm_90a" not in shared and {"sm_75", "sm_89", "sm_121a"} < set(shared)
    assert sorted(id(trial) for due in shared.values() for trial in due) == sorted(map(id, asked)), "each trial once"
    assert max(map(len, shared.values())) == 1
    moved = compile_only._shared_out(probe(check="compile_only", seed=1), asked, "sm_90a")
    assert [arch for arch, due in moved.items() if due] != [arch for arch, due in shared.items() if due]
    full = probe(check="compile_only", tier="full")
    assert all(due == asked for due in compile_only._shared_out(full, asked, "sm_90a").values())


def test_a_gpu_that_alone_runs_a_dtype_compiles_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = probe(check="compile_only")
    asked = [trial for trial, _ in launches(found, "x=4x100")]
    monkeypatch.setattr(compile_only, "_refusals", lambda probe, trial, arch: () if arch == "sm_100a" else ("no",))
    assert compile_only._shared_out(found, asked, "sm_90a")["sm_100a"] == asked


def test_amd_gpus_take_turns_with_each_kernel_once_as_the_last_call_launches_it() -> None:
    def due(found: Probe, arch: str) -> list[Any]:
        return [(one.trial, one.kernel) for one in amd._due(found, every, arch)]

    recipe = Recipe("key", lambda arch: CompiledModule(b"", ""), obstacles=lambda arch: [])
    every = [(t, replace(one, recipe=recipe)) for t, one in launches(probe(), "x=4x100", "x=37x1001")]
    names = [(t, one.kernel) for t, one in every]
    first, second = probe(check="compile_only"), probe(check="compile_only", seed=1)
    assert due(first, "gfx942") == due(second, "gfx950") == names[-1:]
    assert due(first, "gfx950") == due(second, "gfx942") == []
    full = probe(check="compile_only", tier="full")
    assert due(full, "gfx942") == due(full, "gfx950") == names


def notes(found: Probe, case: str) -> set[str]:
    return {t.note.partition(": ")[2] for t in layout.of_higher_rank(found) if t.case == case}


def test_the_highest_rank_has_every_pitch_and_other_calls_some_in_turn() -> None:
    brief, thorough = probe(check="layout"), probe(check="layout", tier="full")
    assert notes(brief, "x2x3x3x4x4") == notes(thorough, "x2x3x3x4x4") == set(layout.PITCHES)
    assert len(notes(brief, "x4x4x4")) == layout.TURNS and notes(thorough, "x4x4x4") == set(layout.PITCHES)
    assert {name for turn in range(len(layout.PITCHES)) for name in layout._in_turn(turn)} == set(layout.PITCHES)


def test_other_dtypes_come_in_the_layouts_that_depend_on_their_size() -> None:
    made = list(layout.in_other_dtypes(probe(check="layout")))
    first = layout._bases(probe(check="layout"))[0].dtype
    assert {t.dtype for t in made} == set(probe().spec.dtypes) - {first}
    assert {t.note.partition(": ")[2] for t in made} <= set(layout.BY_SIZE)


def alone(base: Trial, in_turn: bool = False) -> list[list[str]]:
    """Tensor and layout of the trials in which one tensor alone is laid out anew."""
    told = (trial.note.split(": ") for trial in layout.arrangements(base, everything=True, in_turn=in_turn))
    return [parts for parts in told if len(parts) == 2 and "," not in parts[0]]


def test_one_call_has_every_layout_and_its_tensors_take_turns_alone() -> None:
    (base,) = layout._bases(probe("add", check="layout"))
    assert len(layout._bases(probe("add", check="layout", tier="full"))) == 2 and layout._real_axes(base) > 1
    every, some = alone(base), alone(base, in_turn=True)
    assert {name for name, _ in some} == {name for name, _ in every}
    assert [found for _, found in some] == list(dict.fromkeys(found for _, found in every))
    assert all(pair in every and pair not in some for pair in alone(replace(base, seed=base.seed + 1), in_turn=True))
