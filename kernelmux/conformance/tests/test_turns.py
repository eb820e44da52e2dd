"""What variants of an operator and seeds share out in tier ci, emulated: all of it comes, other runs ask all at once."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelmux.candidate import implementation as candidate
from kernelmux.conformance.checks import exact, shapes
from kernelmux.conformance.inputs import generate
from kernelmux.conformance.judging import asked_less
from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.options import Options
from kernelmux.conformance.variations import neighbouring_trials
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered

pytestmark = pytest.mark.skipif(
    bool(registered.unavailable("triton", torch.device("cpu"))), reason="Triton is not there"
)
Pairs = set[tuple[str, torch.dtype]]


def probe(op: str = "softmax", backend: str = "triton", rung: int = -1, **options: Any) -> Probe:
    variant, implementation = list(registered.variants(backend, op).items())[rung]
    return Probe(catalog.spec(op), "accuracy", backend, variant, implementation, Options(**options))


def asked(found: Probe) -> Pairs:
    """The exact inputs of a variant."""
    return {(t.case, t.dtype) for t in asked_less.shared_out(found, filter(found.able, exact._trials(found)))}


def names(pairs: Pairs) -> set[str]:
    return {case for case, _ in pairs}


@pytest.mark.parametrize("op", ["softmax", "rms_norm", "add"])
def test_two_seeds_ask_for_all_exact_inputs_and_more_in_every_dtype(op: str) -> None:
    some = [asked(probe(op, seed=seed)) for seed in range(12)]
    every = {(t.case, t.dtype) for t in exact._exact(probe(op), probe(op).pairs())}
    assert names(set(chain(*some[:2]))) == names(every) and set(chain(*some)) == every


def test_a_variant_is_asked_a_half_in_every_dtype_and_its_neighbour_the_other() -> None:
    one, other = (asked(probe(rung=rung)) for rung in (-1, -2))
    assert not names(one) & names(other) and {dtype for _, dtype in one} == set(probe().spec.dtypes)


def test_of_two_parts_each_question_is_in_one() -> None:
    both = [list(asked_less.shared_out(probe(seed=seed), range(12))) for seed in range(2)]
    assert sorted(chain(*both)) == list(range(12)) and all(len(part) == 6 for part in both)


@pytest.mark.parametrize("options", [{"tier": "full"}, {"tier": "smoke"}, {"dtypes": ("bf16",)}, {"coverage": True}])
def test_other_runs_ask_everything(options: dict[str, Any]) -> None:
    found = probe(**options)
    assert not asked_less.shares(found) and list(asked_less.shared_out(found, range(4))) == list(range(4))


def test_what_is_not_emulated_is_asked_everything() -> None:
    assert not asked_less.shares(probe(backend="torch_ref"))


def test_the_function_of_a_stranger_is_asked_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    found = probe()
    assert asked_less.shares(found)
    monkeypatch.setattr(candidate, "process_of", lambda fn: Path("a process"))
    assert not asked_less.shares(found)


def test_long_filters_of_small_images_count_as_the_work_they_are() -> None:
    spec = catalog.spec("conv2d_backward_input")
    short, long = (spec.case(f"grad_out=2x2x2x2 weight=2x2x2x{n}") for n in (2, 1024))
    fp32 = spec.dtypes[:1]
    found = probe(spec.name)
    assert shapes._quick(found, short, fp32) and not shapes._quick(found, long, fp32)
    call = generate.permitted(spec, long, fp32[0])
    assert call is not None and neighbouring_trials.work(call) > 300 * call.cost.flops


def test_of_other_operators_the_spec_counts_the_work() -> None:
    spec = catalog.spec("softmax")
    call = generate.permitted(spec, spec.case("x=3x4096"), spec.dtypes[0])
    assert call is not None and neighbouring_trials.work(call) == call.cost.flops
