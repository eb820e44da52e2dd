"""Which variants can run what on which device: as data and as tables, for a GPU that is not here too."""

import pytest
import torch

import kernelmux as kx
from kernelmux.registry import catalog
from kernelmux.registry.backend.description import Implementation
from kernelmux.registry.cli import support_matrix
from kernelmux.registry.spec.conditions import Capability, Dtypes, Multiple, SharedMemory
from kernelmux.registry.tests import made_up

DEVICES = pytest.mark.parametrize("device", ["cpu", "sm_80", "sm_90"])
HALVES = Dtypes("x", torch.float16, torch.bfloat16)


class Fails:
    """A condition of a plugin that raises."""

    text = "odd"

    def check(self, call):
        raise KeyError("Q")


LADDER = {
    "any": Implementation(made_up.softmax, ""),
    "halves": Implementation(made_up.softmax, "", (HALVES, Multiple("N", 8)), {"x": "last"}),
    "hopper": Implementation(made_up.softmax, "", (Capability((9, 0), below=(10, 0)), HALVES)),
    "odd": Implementation(made_up.softmax, "", (Fails(),)),
}
BACKENDS = {
    "theirs": (made_up.home("theirs", 40), {"softmax": LADDER, "gelu": {"one": Implementation(made_up.softmax, "")}}),
    "closed": (made_up.home("closed", 50, "the package closed is not installed"), {"softmax": LADDER}),
    "empty": (made_up.home("empty", 20), {}),
}
SOFTMAX = """\
softmax on sm_80; variants in ladder order

variant         dtypes           conditions                          copied first, unless they have
────────────────────────────────────────────────────────────────────────────────────────────────────
theirs/any      fp32/fp16/bf16
theirs/halves   fp16/bf16        N a multiple of 8                   x: unit stride in the last axis
theirs/hopper   -                cannot run: needs sm_90, before
                                 sm_100
theirs/odd      -                cannot run: a condition fails:
                                 KeyError: 'Q'
closed/any      fp32/fp16/bf16"""
GRID = """\
what can run on cpu: variants in ladder order; the last that can run a call is the default

operator   theirs
────────────────────────────
softmax    any
           halves* fp16/bf16
           hopper fp16/bf16
gelu       one

closed: the package closed is not installed
empty: has none of these operators
a variant without dtypes takes all that the operator has; * means conditions: ask for one operator
alone"""


@pytest.fixture
def backends(monkeypatch):
    made_up.install(monkeypatch, BACKENDS)


def test_the_conditions_of_one_operator_on_a_gpu_that_is_not_here(backends):
    text = str(kx.support_matrix("sm_80", ops="softmax"))
    assert "\n".join(text.splitlines()[:11]) == SOFTMAX


def test_the_table_of_several_operators(backends):
    assert str(kx.support_matrix("cpu", ops=["softmax", "gelu"])) == GRID


def test_the_data(backends):
    matrix = kx.support_matrix("sm_90", ops="softmax")
    found = {e.variant: e for e in matrix.of("softmax", "theirs")}
    assert matrix.device == "sm_90" and matrix.of("softmax", "empty") == ()
    assert found["hopper"].able and found["hopper"].dtypes == ("fp16", "bf16")
    assert found["halves"] == support_matrix.Support(
        "softmax", "theirs", "halves", ("fp16", "bf16"), ("N a multiple of 8",), (("x", "last"),)
    )
    assert not found["odd"].able and found["odd"].problem == "a condition fails: KeyError: 'Q'"
    newer = {e.variant: e for e in kx.support_matrix("sm_100", ops="softmax").of("softmax", "theirs")}
    assert newer["hopper"].problem == "needs sm_90, before sm_100"


def test_what_this_machine_lacks_counts_here_and_not_elsewhere(backends):
    (here,) = kx.support_matrix("cpu", ops="softmax").of("softmax", "closed")
    assert here.problem == "the package closed is not installed" and not here.variant
    assert [e.variant for e in kx.support_matrix("sm_90", ops="softmax").of("softmax", "closed")] == list(LADDER)


@DEVICES
def test_every_implementation_that_is_shipped_is_in_it(device):
    """And can run something, or says why not."""
    matrix = kx.support_matrix(device)
    assert matrix.operators == catalog.names()
    for op in catalog.names():
        for name in kx.backend_names():
            entries = matrix.of(op, name)
            assert entries and all(bool(e.dtypes) != bool(e.problem) for e in entries)
    assert max(map(len, str(matrix).splitlines())) <= 100


def test_the_limits_of_a_card_count(monkeypatch):
    room = {
        "small": Implementation(made_up.softmax, "", (SharedMemory(64 << 10),)),
        "large": Implementation(made_up.softmax, "", (SharedMemory(120 << 10),)),
    }
    made_up.install(monkeypatch, {"theirs": (made_up.home("theirs", 40), {"softmax": room})})

    def able(**where):
        return [e.variant for e in kx.support_matrix(ops="softmax", **where).of("softmax", "theirs") if e.able]

    assert able(card="rtx4090") == able(device="sm_89") == ["small"] and able(card="h100") == ["small", "large"]
    assert kx.support_matrix(card="8.9", ops="softmax").device == "rtx4090"
    (small, large) = kx.support_matrix(card="t4", ops="softmax").of("softmax", "theirs")
    assert small.able and "NVIDIA T4 has 65536 bytes of shared memory per block, needs 122880" in large.problem
    with pytest.raises(kx.ArgumentError, match=r"support_matrix\(\): device: expected cpu or nothing beside --card t4"):
        kx.support_matrix("sm_90", card="t4")
    with pytest.raises(LookupError, match='did you mean "rtx4090"'):
        kx.support_matrix(card="rtx490")


def test_on_a_cpu_what_runs_on_the_emulator_is_marked():
    matrix = kx.support_matrix("cpu", ops=["add", "softmax"])
    emulated = {e.backend for e in matrix.entries if e.emulated}
    assert "torch_ref" not in emulated
    if emulated:
        assert f"{', '.join(sorted(emulated))}: on the emulator, when asked for by name" in str(matrix)


@pytest.mark.parametrize("device", ["tpu", "sm_9", "cuda:7", 5, torch.zeros(2)])
def test_devices_must_be_known(device):
    with pytest.raises(kx.ArgumentError, match=r"support_matrix\(\): device: expected cpu, cuda \(if there is a GPU\)"):
        kx.support_matrix(device)


def test_operators_must_be_known():
    with pytest.raises(kx.UnknownName, match='did you mean "softmax"'):
        kx.support_matrix("cpu", ops=["add", "softmx"])
    with pytest.raises(kx.ArgumentError, match=r"support_matrix\(\): ops: expected an operator or several, got 5"):
        kx.support_matrix("cpu", ops=5)  # type: ignore[arg-type]
