"""The check `integration`: sound operators pass, a fault between an operator and torch fails in its way, and the table."""

import pytest
import torch
from rich.console import Console

import kernelmux as kx
from kernelmux.conformance.options import Options
from kernelmux.conformance.report import integration
from kernelmux.conformance.session.execute import execute
from kernelmux.conformance.session.plan import Item
from kernelmux.conformance.variations.torch_ways import WAYS
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.interop import autograd, torch_ops


@pytest.fixture(autouse=True)
def anew():
    dispatch._plans.clear()
    torch._dynamo.reset()
    yield
    dispatch._plans.clear()
    torch._dynamo.reset()


def judged(op, backend="torch_ref"):
    """What came out of the check, and its cells by way."""
    variant = list(registered.variants(backend, op))[-1]
    outcome = execute(Item(op, backend, variant, integration.CHECK), Options(tier="smoke"))
    return outcome, integration.cells([outcome])[op]


def failing(outcome):
    """The ways that failed, with what they say."""
    return {r.note: r.text for r in outcome.records if r.status == "failed"}


@pytest.mark.parametrize("op", ["softmax", "cross_entropy", "linear"])
def test_a_sound_operator_is_equal_in_every_way(op):
    outcome, cells = judged(op)
    assert outcome.status == "passed", outcome.text
    assert all(cells[way].equal and not cells[way].differ for way in WAYS)


def test_what_is_not_asked_has_a_reason():
    _, cells = judged("matmul")
    assert str(cells["patch"]) == "no module" and cells["vmap"].equal


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_kernels_are_asked_for_vmap_and_gradients(backend):
    if registered.unavailable(backend, torch.device("cpu")):
        pytest.skip(f"{backend} cannot be imported")
    outcome, cells = judged("softmax", backend)
    assert outcome.status == "passed", outcome.text
    assert cells["vmap"].equal and cells["gradient"].equal and str(cells["export"]) == "-"


def test_an_operator_of_torch_that_drops_a_gradient(monkeypatch):
    whole = torch_ops._differentiable

    def detached(spec, *values, backend=None):
        own = (v.detach() if isinstance(v, torch.Tensor) else v for v in values)
        return whole(spec, *own, backend=backend)

    monkeypatch.setattr(torch_ops, "_differentiable", detached)
    outcome, cells = judged("rms_norm")
    assert "none by torch.ops, and by the eager call one" in failing(outcome)["gradient"]
    assert str(cells["gradient"]).startswith("1 DIFFER")


def test_a_batch_that_mixes_its_examples(monkeypatch):
    whole = torch_ops._in_front

    def mixed(item, value, at, lead):
        return whole(item, value if at is None else value.flip(at), at, lead)

    monkeypatch.setattr(torch_ops, "_in_front", mixed)
    assert set(failing(judged("silu")[0])) == {"vmap"}


def test_shapes_of_fake_tensors_that_are_wrong(monkeypatch):
    whole = autograd.hollow
    monkeypatch.setattr(autograd, "hollow", lambda call: tuple(y.double() for y in whole(call)))
    assert {"compile"} <= set(failing(judged("silu")[0]))


def test_a_module_that_computes_something_else(monkeypatch):
    monkeypatch.setattr(kx.nn.Softmax, "forward", lambda self, x: kx.softmax(1.001 * x, self.dim))
    found = failing(judged("softmax")[0])
    assert set(found) == {"patch"} and "of what the bounds allow" in found["patch"]


def test_the_table_has_a_row_per_operator_and_counts_what_differs(monkeypatch):
    outcomes = [judged("softmax")[0]]
    monkeypatch.setattr(kx.nn.GELU, "forward", lambda self, x: kx.softmax(x))
    outcomes.append(judged("gelu")[0])
    text = integration.markdown(outcomes)
    row = next(line for line in text.splitlines() if line.startswith("| gelu"))
    assert "1 DIFFER" in row and "patch: 4 equal, 1 differ, 2 operators" in text
    console = Console(width=120, record=True, file=None, quiet=False)
    with console.capture() as said:
        integration.show(console, outcomes)
    assert "vmap" in said.get() and "1 DIFFER" in said.get()
    assert integration.markdown([]) == ""
