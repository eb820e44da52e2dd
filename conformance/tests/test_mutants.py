"""Every broken kernel is caught by the check it belongs to; the sound ones pass them all."""

from __future__ import annotations

import pytest

from kernelmux.conformance import check as catalogue
from kernelmux.conformance import mutation
from kernelmux.conformance.mutation import Mutant
from kernelmux.conformance.options import Options
from kernelmux.emulator import nvrtc

with mutation.registration():
    POPULATION = mutation.population("cpu")


@pytest.mark.parametrize("mutant", POPULATION, ids=lambda m: f"{m.op}-{m.name}")
def test_the_suite_tells_broken_from_sound(mutant: Mutant, mutants: None) -> None:
    if mutant.op == "add" and (reason := nvrtc.unavailable()):  # CUDA C++
        pytest.skip(reason)
    assert mutation.survived(mutant, mutation.examine(mutant, Options())) == ""


def test_every_check_of_variants_has_a_mutant() -> None:
    caught = {m.check for m in POPULATION if m.check}
    without = {"compile_only", "graphs", "offsets", "streams"}  # need a compiler or a GPU
    assert caught | without == {n for n in catalogue.names() if catalogue.check(n).about == "variant"}
