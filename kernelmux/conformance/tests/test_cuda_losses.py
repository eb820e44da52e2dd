"""cross_entropy_with_gradient on CUDA: rows in pieces, of which some wait for words of others, and rows in clusters."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import kernelmux
from kernelmux import emulator
from kernelmux.backends.cuda import cross_entropy_with_gradient as losses
from kernelmux.emulator import nvrtc
from kernelmux.registry.util import cards

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*on the emulator"),
    pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable())),
]


@pytest.mark.parametrize(("n", "skipped", "smoothing"), [(9000, 0, 0.1), (9000, 3, 0.0), (9001, 0, 0.1)])
def test_gradients_of_rows_long_past(n: int, skipped: int, smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One multiprocessor: a row lies between what is looked at and what is written, so that most of the grid does both."""
    monkeypatch.setattr(losses, "card", lambda x: replace(cards.emulated(), processors=1))
    monkeypatch.setattr(losses, "_BLOCKS", 1)
    monkeypatch.setattr(losses, "_longest", lambda on: 0)  # all rows are in pieces
    rng = torch.Generator().manual_seed(n)
    x = torch.randn(12 * n + skipped, generator=rng).bfloat16()[skipped:].view(12, n)
    target = torch.randint(0, n, (12,), generator=rng)
    target[1] = -100
    with emulator.checks("full"):
        loss, grad = losses.cross_entropy_with_gradient("staying", x, target, -100, smoothing, "mean")
    assert_right(x, target, smoothing, loss, grad)


def assert_right(
    x: torch.Tensor, target: torch.Tensor, smoothing: float, loss: torch.Tensor, grad: torch.Tensor
) -> None:
    exact = x.double().requires_grad_()
    want = F.cross_entropy(exact, target, label_smoothing=smoothing)
    want.backward()
    assert exact.grad is not None
    assert torch.allclose(loss.double(), want, rtol=1e-6)
    assert torch.allclose(grad.double(), exact.grad, rtol=2**-8, atol=1e-9)


@pytest.mark.parametrize(
    ("n", "dtype", "smoothing"),
    [
        (1031, torch.bfloat16, 0.1),
        (4223, torch.bfloat16, 0.0),
        (16384, torch.bfloat16, 0.0),
        (16383, torch.float32, 0.1),
        (70000, torch.bfloat16, 0.1),
        (70001, torch.bfloat16, 0.0),
        (33000, torch.float32, 0.1),
    ],
)
def test_rows_in_clusters(n: int, dtype: torch.dtype, smoothing: float) -> None:
    x = torch.randn(3, n, generator=torch.Generator().manual_seed(n)).to(dtype)
    target = torch.tensor([5, -100, n - 1])
    with emulator.checks("full"):
        loss, grad = losses.cross_entropy_with_gradient("clusters", x, target, -100, smoothing, "mean")
    assert_right(x, target, smoothing, loss, grad)


@pytest.mark.parametrize("size", [*losses._OF_BLOCK[::1024], losses._OF_BLOCK[-1], *losses._SHARED[::131072]])
def test_a_block_or_a_cluster_holds_its_row(size: int) -> None:
    """With no more than a warp of each block to spare; none larger than the launch bounds leave registers for."""
    blocks, threads, vectors = losses._shares(size)
    held = blocks * vectors * 16
    assert held * (threads - 32) < size <= held * threads
    assert 16 <= threads <= losses._MOST_SHARED
    assert blocks > 1 or losses._THREADS // threads * threads >= 832


def test_which_rows_are_in_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    target = torch.zeros(1, dtype=torch.int64)
    ways: list[str] = []
    for name in ("_two_pass", "_clusters", "_following"):
        monkeypatch.setattr(losses, name, partial(way, ways, name))
    for size in (losses._OF_BLOCK.start - 1, losses._OF_BLOCK.start + 3, losses._SHARED[-1], losses._SHARED[-1] + 16):
        with pytest.raises(LookupError):
            losses.cross_entropy_with_gradient("clusters", torch.empty(1, size // 4), target, -100, 0.0, "sum")
    assert ways == ["_two_pass", "_clusters", "_clusters", "_following"]


@pytest.mark.parametrize(("name", "vectors"), [("a100", 8), ("rtx3090", 4), ("rtx5090", 4), ("h200", 12), ("b200", 12)])
def test_rows_stay_as_far_as_the_card_has_shared_memory(name: str, vectors: int) -> None:
    card = cards.named(name)
    assert losses._ring(card) == vectors
    for size in (8192, 16400, 32784, 65552, losses._longest(card)):
        launch = losses._staying(
            65536, size // 2, size // 2, torch.bfloat16, -100, 0.0, card.processors, losses._ring(card)
        )
        block = launch._shared + 816  # and two rooms of sums
        assert block <= card.shared_per_block
        assert launch._grid[0] // card.processors * (block + 1024) <= card.shared_per_processor


@pytest.mark.parametrize("name", ["a100", "rtx4090"])
def test_rows_stay_on_cards_before_hopper(name: str) -> None:
    x = torch.randn(5, 9001, generator=torch.Generator().manual_seed(1)).bfloat16()
    target = torch.tensor([5, -100, 0, 17, 9000])
    with cards.standing_for(name), emulator.checks("full"):
        assert kernelmux.which("cross_entropy_with_gradient", x, target, backend="cuda") == "cuda/staying"
        loss, grad = kernelmux.cross_entropy_with_gradient(x, target, backend="cuda")
    assert_right(x, target, 0.0, loss, grad)


def way(ways: list[str], name: str, *_: object) -> None:
    ways.append(name)
    raise LookupError(name)
