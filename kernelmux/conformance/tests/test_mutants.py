"""Every broken kernel is caught by the check it belongs to, which passes the same code without the defect.

Whether that code passes all other checks too is what `python -m kernelmux.conformance --mutants` says.
"""

from __future__ import annotations

import pytest

from kernelmux.conformance import check as catalogue
from kernelmux.conformance.inputs import generate
from kernelmux.conformance.judging import probe
from kernelmux.conformance.options import Options
from kernelmux.conformance.session import mutation
from kernelmux.conformance.session.execute import Outcome, execute
from kernelmux.conformance.session.mutation import Mutant
from kernelmux.emulator import nvrtc
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered

with mutation.registration():
    POPULATION = mutation.population("cpu")
CONTROL = "sound"


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """For mutants that refuse all but empty calls no case is found, however many are drawn."""
    monkeypatch.setattr(generate, "TRIES", 20)


@pytest.mark.parametrize("mutant", POPULATION, ids=lambda m: f"{m.op}-{m.name}")
def test_the_suite_tells_broken_from_sound(
    mutant: Mutant, mutants: None, few_draws: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mutant.check:
        monkeypatch.setattr(probe, "ENOUGH", 1)  # failures: the first one tells
    options = Options(tier=tier(mutant))
    told = [mutation.executed(mutant.item(check), options) for check in checks(mutant)]
    if any("NvrtcUnavailableError" in outcome.text for outcome in told):  # CUDA C++
        pytest.skip(nvrtc.unavailable() or "NVRTC cannot be used")
    assert told and mutation.survived(mutant, told) == ""


def checks(mutant: Mutant) -> list[str]:
    """The one that catches it; those that catch the relatives of a control; all for a kernel that only looks broken."""
    if mutant.check or mutant.variant != CONTROL:
        return mutant.checks("cpu")
    return sorted({m.check for m in POPULATION if (m.op, m.backend) == (mutant.op, mutant.backend)} - {""})


def tier(mutant: Mutant) -> str:
    """What is sound is asked on small cases; so is `claims`, which makes every case to see that a kernel refuses it."""
    return "ci" if mutant.check not in ("", "claims") else "smoke"


def test_a_mutant_that_does_not_compile_is_not_caught() -> None:
    mutant = next(m for m in POPULATION if m.check)
    broken = Outcome(mutant.item(mutant.check), "failed", "raised CompileError: NVRTC cannot compile it")
    assert "does not compile" in mutation.survived(mutant, [broken])


# One check alone stands between each of these and its users, each time another: no check could be left out.
#
# Two checks are never alone. Others call kernels on a sample of the cases of `accuracy`, and judge results by the same
# bound. What `signature` says of wrong calls is decided before a kernel is reached; what it asks of a result, every check
# asks (`Judge.well_formed`), and that it requires no gradient `ambience` as well.
ALONE = {
    "add-bits/from_zero",
    "add-shapes/twice",
    "matmul-ambience/flag_left",
    "matmul-claims/empty_only",
    "reduce_sum-state/leak",
    "reduce_sum-order/arrival",
    "rms_norm-scalars/vectors_have_eps",
    "add-extent/int_offset",
    "softmax-extent/clamped",
    "softmax-properties/last_unseen",
    "softmax-basics/filled_gap",
    "softmax-basics/merged_axes",
    "softmax-basics/short_reciprocal",
    "reduce_max-thresholds/halves",
}
NEVER_ALONE = {"accuracy", "signature"}
ASKED = (
    "accuracy exact shapes layout signature special_values claims ambience scalars memory state repeatability offsets"
    " extent properties thresholds"
).split()


@pytest.mark.parametrize("mutant", [m for m in POPULATION if f"{m.op}-{m.name}" in ALONE], ids=lambda m: m.name)
def test_one_check_alone_catches_it(mutant: Mutant, mutants: None, few_draws: None) -> None:
    home = registered.backend(mutant.backend)
    applying = [n for n in ASKED if n != mutant.check and catalogue.check(n).applies(home, "cpu")]
    assert mutant.check in ASKED
    assert {n for n in applying if execute(mutant.item(n), Options()).status == "failed"} == set()


def test_the_members_that_one_check_catches_are_there() -> None:
    assert {m.op for m in POPULATION if m.check} == set(catalog.names())
    alone = [m.check for m in POPULATION if f"{m.op}-{m.name}" in ALONE]
    assert len(alone) == len(ALONE) and sorted([*alone, *NEVER_ALONE]) == sorted(ASKED)


def test_every_check_of_variants_has_a_mutant() -> None:
    caught = {m.check for m in POPULATION if m.check}
    without = {"compile_only", "graphs", "streams", "devices"}  # need a compiler or a GPU
    without |= {"gradients", "torch", "integration"}  # judge what stands between a kernel and torch: tests of their own
    assert caught | without == {n for n in catalogue.names() if catalogue.check(n).about == "variant"}
