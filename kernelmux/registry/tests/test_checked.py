"""KERNELMUX_CHECK=1: an index that points nowhere is an ArgumentError in every backend, however the call is made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import kernelmux as kx
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import checked_values, dispatch
from kernelmux.registry.errors import ArgumentError

BACKENDS = [name for name in registered.backends() if not registered.unavailable(name, torch.device("cpu"))]
LOGITS, RIGHT, WRONG = torch.randn(3, 9), torch.tensor([1, -100, 8]), torch.tensor([1, -100, 9])
TEXT = r"cross_entropy: target: expected 0 <= target < 9 or ignore_index = -100, got 9 in row 2"
pytestmark = pytest.mark.filterwarnings("ignore:.*on the emulator")


@pytest.fixture(autouse=True)
def on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(checked_values.VARIABLE, "1")
    dispatch._plans.clear()
    yield
    dispatch._plans.clear()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_target_that_is_no_class_is_an_error_in_every_call(backend: str) -> None:
    for _ in range(3):  # the third one is a comparison and a launch
        assert not kx.cross_entropy(LOGITS, RIGHT, backend=backend).isnan()
    for _ in range(3):
        with pytest.raises(ArgumentError, match=TEXT):
            kx.cross_entropy(LOGITS, WRONG, backend=backend)
    with pytest.raises(ArgumentError, match=TEXT):
        kx.bind("cross_entropy", like=(LOGITS, RIGHT), backend=backend)(LOGITS, WRONG)
    with pytest.raises(ArgumentError, match=TEXT):
        torch.compile(lambda z, t: kx.cross_entropy(z, t, backend=backend), backend="eager")(LOGITS, WRONG)
    with pytest.raises(ArgumentError, match=r"with_gradient: target: expected .*, got -1 in row 0"):
        kx.cross_entropy_with_gradient(LOGITS, WRONG - 2, ignore_index=7, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_operator_of_the_gradient_looks_too(backend: str) -> None:
    with pytest.raises(ArgumentError, match=r"cross_entropy_backward: target: expected .*, got 9 in row 2"):
        kx.cross_entropy_backward(torch.ones(()), LOGITS, WRONG, LOGITS.logsumexp(-1), backend=backend)
    leaf = LOGITS.clone().requires_grad_()
    kx.cross_entropy(leaf, RIGHT, backend=backend).backward()
    assert leaf.grad is not None and leaf.grad.isfinite().all()


@pytest.mark.filterwarnings("ignore:.*vmap runs one call")
@pytest.mark.parametrize("backend", BACKENDS)
def test_all_examples_of_vmap_are_looked_at(backend: str) -> None:
    run = torch.vmap(lambda z, t: kx.cross_entropy(z, t, backend=backend))
    assert run(LOGITS.expand(2, 3, 9), RIGHT.expand(2, 3)).isfinite().all()
    with pytest.raises(ArgumentError, match=r"cross_entropy: target: expected 0 <= target < 9 .*, got 9"):
        run(LOGITS.expand(2, 3, 9), torch.stack([RIGHT, WRONG]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_pages_and_lengths_are_looked_at_as_far_as_a_sequence_reaches(backend: str) -> None:
    q, pages = torch.ones(2, 1, 64).half(), torch.ones(3, 1, 16, 64).half()

    def run(table: list[list[int]], lengths: list[int]) -> torch.Tensor:
        of = (torch.tensor(table, dtype=torch.int32), torch.tensor(lengths, dtype=torch.int32))
        return kx.paged_attention(q, pages, pages, *of, backend=backend)

    assert run([[0, 2], [1, 7]], [32, 16]).isfinite().all()
    with pytest.raises(ArgumentError, match=r"page_table: expected 0 <= page_table < 3, got 7 in row 1, column 1"):
        run([[0, 2], [1, 7]], [32, 17])
    with pytest.raises(ArgumentError, match=r"lengths: expected 0 <= lengths <= 32, got 33 in row 0"):
        run([[0, 2], [1, 1]], [33, 17])


def test_off_nothing_is_added_to_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = catalog.spec("cross_entropy")
    assert isinstance(dispatch.resolve(spec, spec.given(LOGITS, RIGHT), "torch_ref")[0].fn, checked_values.ValueCheck)
    soft = catalog.spec("softmax")
    assert not isinstance(dispatch.resolve(soft, soft.given(LOGITS), "torch_ref")[0].fn, checked_values.ValueCheck)
    monkeypatch.setenv(checked_values.VARIABLE, "0")
    assert not isinstance(
        dispatch.resolve(spec, spec.given(LOGITS, RIGHT), "torch_ref")[0].fn, checked_values.ValueCheck
    )
    assert kx.cross_entropy(LOGITS, WRONG, backend="torch_ref").isnan()


def test_another_value_of_the_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(checked_values.VARIABLE, "yes")
    with pytest.raises(ArgumentError, match="KERNELMUX_CHECK: expected 0 or 1, got 'yes'"):
        kx.cross_entropy(LOGITS, RIGHT, backend="torch_ref")


def test_tensors_without_values_are_not_looked_at() -> None:
    with torch.device("meta"):
        assert kx.cross_entropy(torch.empty(3, 9), torch.empty(3, dtype=torch.int64)).is_meta
    exported = torch.export.export(torch.nn.CrossEntropyLoss(), (LOGITS, RIGHT))
    assert exported.module()(LOGITS, RIGHT).isfinite()
