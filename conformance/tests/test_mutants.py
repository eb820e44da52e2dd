"""Every broken kernel is caught by the check it belongs to; the sound ones pass them all."""

from __future__ import annotations

import importlib

import pytest

from kernelmux.conformance import check as catalogue
from kernelmux.conformance import mutation
from kernelmux.conformance.execute import Outcome
from kernelmux.conformance.mutation import Mutant
from kernelmux.conformance.options import Options
from kernelmux.emulator import nvrtc

with mutation.registration():
    POPULATION = mutation.population("cpu")


@pytest.mark.parametrize("mutant", POPULATION, ids=lambda m: f"{m.op}-{m.name}")
def test_the_suite_tells_broken_from_sound(mutant: Mutant, mutants: None) -> None:
    module = importlib.import_module(f"{mutation.families()[mutant.backend]}.{mutant.op}")
    if hasattr(module, "SOURCE") and (reason := nvrtc.unavailable()):  # CUDA C++
        pytest.skip(reason)
    assert mutation.survived(mutant, mutation.examine(mutant, Options())) == ""


def test_a_mutant_that_does_not_compile_is_not_caught() -> None:
    mutant = next(m for m in POPULATION if m.check)
    broken = Outcome(mutant.item(mutant.check), "failed", "raised CompileError: NVRTC cannot compile it")
    assert "does not compile" in mutation.survived(mutant, [broken])


def test_every_check_of_variants_has_a_mutant() -> None:
    caught = {m.check for m in POPULATION if m.check}
    without = {"compile_only", "graphs", "streams"}  # need a compiler or a GPU
    assert caught | without == {n for n in catalogue.names() if catalogue.check(n).about == "variant"}
