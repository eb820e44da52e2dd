"""What the judging itself is worth: vacuous cases, an outlying reference, layouts with their own reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from kernelmux.conformance import trials
from kernelmux.conformance.execute import Outcome, execute
from kernelmux.conformance.options import Options
from kernelmux.conformance.plan import Item
from kernelmux.registry import catalog
from kernelmux.registry.cases import Case
from kernelmux.registry.numerics import ErrorModel
from kernelmux.registry.spec import OpSpec

Respecified = Callable[..., Outcome]


@pytest.fixture
def respecified(monkeypatch: pytest.MonkeyPatch) -> Iterator[Respecified]:
    """Run one check against a spec that was changed for the occasion."""

    def run(spec: OpSpec, check: str, backend: str = "spec", variant: str = "") -> Outcome:
        monkeypatch.setattr(catalog, "spec", lambda name: spec)
        trials._cache.clear()
        return execute(Item(spec.name, backend, variant, check), Options())

    yield run
    trials._cache.clear()


def test_a_bound_that_accepts_zeros_makes_every_case_vacuous(respecified: Respecified) -> None:
    spec = catalog.spec("softmax")
    assert isinstance(spec.error, ErrorModel)
    loose = replace(spec, error=replace(spec.error, magnitude=lambda x, axis, scale: torch.full_like(x, 1e9)))
    outcome = respecified(loose, "vacuity")
    assert outcome.status == "failed" and "vacuous: it accepts zeros" in outcome.text


def test_a_case_of_zeros_is_vacuous(respecified: Respecified, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(catalog.spec("matmul"), cases=(Case("a=8x8 b=8x8"),))
    monkeypatch.setattr(trials, "draw", lambda shape, *rest: torch.zeros(shape))
    outcome = respecified(spec, "vacuity")
    assert outcome.status == "failed" and "no case rejects zeros" in outcome.text


def test_a_wrong_reference_is_the_outlier(respecified: Respecified, mutants: None) -> None:
    spec = catalog.spec("softmax")
    wrong = replace(spec, reference=lambda x, axis, scale: spec.reference(x, axis, scale) * 1.1)
    outcome = respecified(wrong, "parity", "mutants_basics", "sound")
    assert outcome.status == "failed" and "it is the outlier" in outcome.text


def test_inputs_that_are_not_exact_are_refused(respecified: Respecified) -> None:
    spec = catalog.spec("reduce_sum")
    drawn = replace(spec, exact=lambda case, dtype, rng: {"x": torch.rand(case.shapes["x"], generator=rng).to(dtype)})
    outcome = respecified(drawn, "exact", "torch_ref", "eager")
    assert outcome.status == "failed" and "not exact" in outcome.text


def test_seeds_come_from_operator_case_dtype_and_seed() -> None:
    spec, cpu = catalog.spec("add"), torch.device("cpu")
    one, two = (trials.drawn(spec, spec.cases[0], torch.float32, seed)["x"] for seed in (0, 1))
    assert torch.equal(one, trials.trial(spec, spec.cases[0], torch.float32, 0, cpu).values[0])
    assert not torch.equal(one, two)
