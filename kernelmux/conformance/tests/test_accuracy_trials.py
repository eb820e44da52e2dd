"""What the check `accuracy` asks beside the cases: indices of the ends of their axis, and one multiprocessor."""

import pytest
import torch

from kernelmux.conformance.checks import accuracy
from kernelmux.conformance.judging.probe import Probe
from kernelmux.conformance.options import Options
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered

ENDS, ONE = "indices of the ends of their axis", "on one multiprocessor"


def examined(op: str, backend: str, variant: str, case: str, coverage: bool = False) -> Probe:
    found = registered.variants(backend, op)[variant]
    probe = Probe(catalog.spec(op), "accuracy", backend, variant, found, Options(cases=(case,), coverage=coverage))
    accuracy.run(probe)
    assert all(r.status in ("passed", "skipped") for r in probe.records)
    return probe


def test_few_indices_are_asked_once_more_at_the_ends_of_their_axis() -> None:
    notes = [r.note for r in examined("cross_entropy", "torch_ref", "plain", "logits=8x100 target=8").records]
    assert notes.count(ENDS) == notes.count("") > 0
    notes = [r.note for r in examined("cross_entropy", "torch_ref", "plain", "logits=33x33 target=33").records]
    assert ENDS not in notes


def test_larger_tiles_on_one_multiprocessor_are_asked() -> None:
    """The grid is the same, but the threads are more."""
    probe = examined("int8_matmul", "triton", "blocked", "a=64x64 b=64x48", coverage=True)
    assert [r.note for r in probe.records] == ["", ONE]


@pytest.mark.skipif(torch.cuda.is_available(), reason="runs without a GPU, on the emulator")
def test_kernels_of_tensors_that_lie_elsewhere_are_asked() -> None:
    """Rows that begin anywhere are read one element at a time, by another kernel; gaps in whole rows make no new one."""
    case = "q=1x1x3x64 k=1x1x200x64 v=1x1x200x64"
    probe = examined("attention", "cuda", "tensor_cores", case, coverage=True)
    moved = {r.note for r in probe.records if "modulo 16" in r.note}
    assert moved == {f"q, k, v: address 2 modulo 16, {ONE}"}
    assert "modulo 16" not in " ".join(r.note for r in examined("attention", "cuda", "tensor_cores", case).records)
