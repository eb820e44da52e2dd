"""Deterministic algorithms, as the check "ambience" asks for them: equal bits, or a refusal by name."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kernelmux.candidate import global_state
from kernelmux.conformance.checks import ambience as check
from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.judging.trial_outcome import Record
from kernelmux.conformance.options import Options
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.choice import determinism
from kernelmux.registry.util import torch_modes


def judged(label: str, case: str) -> list[Record]:
    """What the check says of a variant of attention_backward in one case."""
    backend, _, variant = label.partition("/")
    found = registered.variants(backend, "attention_backward")[variant]
    options = Options(cases=(case,), dtypes=("fp16",))
    probe = Probe(catalog.spec("attention_backward"), "ambience", backend, variant, found, options)
    check.run(probe)
    return probe.records


CASE = "grad_out1x1x1x64-*"


def test_a_kernel_with_atomics_is_refused_under_the_flag_and_the_others_run() -> None:
    assert [r.status for r in judged("cuda/fused_atomic", CASE)] == ["passed"]
    assert [r.status for r in judged("cuda/tensor_cores", CASE)] == ["passed"]


def test_a_choice_that_does_not_look_at_the_flag_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    read = torch_modes.surroundings
    monkeypatch.setattr(torch_modes, "surroundings", lambda given: read(given)._replace(deterministic=determinism.OFF))
    (record,) = judged("cuda/fused_atomic", CASE)
    assert record.status == "failed"
    assert "with torch.use_deterministic_algorithms(True): cuda/fused_atomic is not deterministic" in record.text


def test_the_flag_is_as_before_behind_the_setting() -> None:
    before = torch.get_deterministic_debug_mode()
    with determinism.asked_for():
        assert torch.get_deterministic_debug_mode() == determinism.ERROR
        with determinism.asked_for(warn_only=True):
            assert torch.get_deterministic_debug_mode() == determinism.WARN
        assert torch.get_deterministic_debug_mode() == determinism.ERROR
    assert torch.get_deterministic_debug_mode() == before


def test_the_surroundings_are_read_where_torch_only_pretends_to_compute() -> None:
    with FakeTensorMode():
        there = global_state.snapshot()
    assert not global_state.differences(there, global_state.snapshot())
