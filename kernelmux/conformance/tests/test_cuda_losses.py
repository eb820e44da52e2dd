"""cross_entropy_with_gradient on CUDA: rows in pieces, of which some wait for words of others, and rows in clusters.

Few rows of it and of cross_entropy: what is launched for them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

import kernelmux
from kernelmux import emulator
from kernelmux.backends.cuda import cross_entropy
from kernelmux.backends.cuda import cross_entropy_with_gradient as losses
from kernelmux.emulator import nvrtc
from kernelmux.registry import catalog
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
def test_rows_in_clusters(n: int, dtype: torch.dtype, smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_few_and_long", lambda *_: False)
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
    monkeypatch.setattr(losses, "_few_and_long", lambda *_: None)
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
            65536, size // 2, size // 2, torch.bfloat16, -100, 0.0, False, False, card.processors, losses._ring(card)
        )
        block = launch._shared + 816  # and two rooms of sums
        assert block <= card.shared_per_block
        assert launch._grid[0] // card.processors * (block + 1024) <= card.shared_per_processor


@pytest.mark.parametrize(("name", "n"), [("a100", 9001), ("a100", 100001), ("rtx4090", 9001), ("rtx4090", 100001)])
def test_rows_on_cards_before_hopper(name: str, n: int) -> None:
    """Rows that stay, and in pieces."""
    x = torch.randn(5, n, generator=torch.Generator().manual_seed(1)).bfloat16()
    target = torch.tensor([5, -100, 0, 17, n - 1])
    with cards.standing_for(name), emulator.checks("full"):
        assert kernelmux.which("cross_entropy_with_gradient", x, target, backend="cuda") == "cuda/staying"
        loss, grad = kernelmux.cross_entropy_with_gradient(x, target, backend="cuda")
        again = kernelmux.cross_entropy(x, target, backend="cuda")
    assert_right(x, target, 0.0, loss, grad)
    assert torch.allclose(again, loss, rtol=1e-6)


PIECE = 16384  # bytes
LOOK, LAST, WRITE = "cross_entropy_look", "cross_entropy_last", "cross_entropy_with_gradient_pieces"
ONE = "cross_entropy_with_gradient_"


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize(
    ("rows", "n", "dtype", "smoothing", "skipped"),
    [
        (3, 70000, torch.bfloat16, 0.1, 0),
        (5, 66001, torch.float16, 0.0, 3),
        (2, 140001, torch.float32, 0.1, 0),  # several pieces for each lane
        (4, 270336, torch.bfloat16, 0.0, 8),
    ],
)
def test_few_long_rows_take_two_launches(
    rows: int, n: int, dtype: torch.dtype, smoothing: float, skipped: int, reduction: str
) -> None:
    """Rows lie apart. A target in the last column, one that does not count, one that is no class, and one in the first."""
    x = torch.randn(rows, n + skipped, generator=torch.Generator().manual_seed(n)).to(dtype)[:, skipped:]
    target = torch.tensor([n - 1, -100, n, 0, n // 2])[:rows]
    with emulator.checks("full"), emulator.trace() as trace:
        loss, grad = losses.cross_entropy_with_gradient("clusters", x, target, -100, smoothing, reduction)
        again, lse = cross_entropy.cross_entropy(x, target, -100, smoothing, reduction)
    exact = x.double().requires_grad_()
    each = F.cross_entropy(exact, target.where(target < n, 0), reduction="none", label_smoothing=smoothing)
    share = (target != -100).sum() if reduction == "mean" else 1
    (each.sum() / share).backward()
    assert exact.grad is not None
    each = each.detach().where(target < n, torch.nan)
    want = each if reduction == "none" else each.sum() / share
    assert torch.allclose(loss.double(), want, rtol=1e-6, equal_nan=True)
    assert torch.allclose(again.double(), want, rtol=1e-6, equal_nan=True)
    assert torch.allclose(lse.double(), x.double().logsumexp(1), rtol=1e-6)
    want = exact.grad.where(target[:, None] < n, torch.nan)
    assert torch.allclose(grad.double(), want, rtol=2**-8, atol=1e-7, equal_nan=True)
    assert [launch.kernel for launch in trace.launches] == [LOOK, WRITE, LOOK, LAST]


@pytest.mark.parametrize(
    ("plan", "n", "dtype", "smoothing"),
    [
        ("staying", 140000, torch.float16, 0.0),
        ("staying", 66000, torch.float32, 0.1),
        ("clusters", 270336, torch.bfloat16, 0.1),
    ],
)
def test_a_row_of_few_has_the_bits_of_one_of_many(
    plan: str, n: int, dtype: torch.dtype, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where pieces of many rows wait for others, and a launch ahead says how many count. Not where clusters have many."""
    x = torch.randn(2, n, generator=torch.Generator().manual_seed(n)).to(dtype)
    target = torch.tensor([5, n - 1])
    found = {}
    for few in (True, False):
        if not few:
            monkeypatch.setattr(losses, "_few_and_long", lambda *_: False)
            monkeypatch.setattr(losses, "_FEW", 0)
        for reduction in ("none", "mean"):
            with emulator.trace() as trace:
                call = losses.cross_entropy_with_gradient(plan, x, target, -100, smoothing, reduction)
            found[few, reduction] = call
        assert (trace.launches[-1].kernel == WRITE) is few
    assert torch.equal(found[True, "none"][0], found[False, "none"][0])
    for reduction in ("none", "mean"):
        assert torch.equal(found[True, reduction][1], found[False, reduction][1])


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize(("plan", "n"), [("two_pass", 700), ("staying", 8101), ("clusters", 8101), ("clusters", 40000)])
def test_one_row_takes_no_launch_for_its_mean(plan: str, n: int, counts: bool) -> None:
    """The mean over no row is NaN, and its gradient 0."""
    ways = [LOOK, WRITE] if n == 40000 else [ONE + plan]
    x = torch.randn(1, n, generator=torch.Generator().manual_seed(n))
    target = torch.tensor([n - 1 if counts else -100])
    with emulator.checks("full"), emulator.trace() as trace:
        loss, grad = losses.cross_entropy_with_gradient(plan, x, target, -100, 0.0, "mean")
        again, _ = cross_entropy.cross_entropy(x, target, -100, 0.0, "mean")
    assert [launch.kernel for launch in trace.launches] == [*ways, "cross_entropy_online"]
    assert loss.shape == again.shape == ()
    if counts:
        assert_right(x, target, 0.0, loss, grad)
        assert torch.allclose(again, F.cross_entropy(x, target), rtol=1e-6)
    else:
        assert bool(loss.isnan()) and bool(again.isnan()) and not grad.any()


@pytest.mark.parametrize("rows", [losses._FEW, losses._FEW + 1])
@pytest.mark.parametrize(("plan", "n"), [("two_pass", 33), ("staying", 4100), ("clusters", 1100)])
def test_few_rows_are_counted_without_a_launch(plan: str, n: int, rows: int) -> None:
    x = torch.randn(rows, n, generator=torch.Generator().manual_seed(n)).bfloat16()
    target = torch.arange(rows) % 30
    target[::3] = -100
    with emulator.trace() as trace:
        loss, grad = losses.cross_entropy_with_gradient(plan, x, target, -100, 0.0, "mean")
    assert_right(x, target, 0.0, loss, grad)
    sums = "cross_entropy_sums"
    assert [launch.kernel for launch in trace.launches] == [sums] * (rows > losses._FEW) + [ONE + plan, sums]


def test_which_rows_are_few_and_long() -> None:
    """As many as multiprocessors at most, of more than two pieces, and of half of L2 together."""
    card = cards.table()["h200"]
    calls = (
        *((1, 2 * PIECE + 16), (1, 2 * PIECE)),
        *((132, 3 * PIECE), (133, 3 * PIECE)),
        *((64, card.l2 // 128), (64, card.l2 // 128 + 16)),
        *((1, 512 * PIECE), (1, 512 * PIECE + 2)),
    )
    assert [losses._few_and_long(*call, card) for call in calls] == [True, False] * 4
    assert not losses._few_and_long(losses._FEW + 1, 3 * PIECE, replace(card, processors=1000))


@pytest.mark.parametrize(
    ("op", "module", "shortest"),
    [("cross_entropy", cross_entropy, 2**15), ("cross_entropy_with_gradient", losses, 2**15 + 16)],
)
def test_long_rows_and_uneven_ones_are_exempt_on_every_card(op: str, module: ModuleType, shortest: int) -> None:
    """From being the same in every batch: what few of them may have more blocks for, or vectors elsewhere."""
    *_, variant = module.VARIANTS.values()
    target = torch.empty(3, dtype=torch.int64)
    for size, free in ((shortest - 16, False), (shortest - 20, True), (shortest, True)):
        call = catalog.spec(op).bind(torch.empty(3, size // 4), target)
        assert (variant.exempt["BatchInvariant"].check(call) is None) is free
    for card in cards.table().values():
        assert not losses._few_and_long(1, 2**15, card)
        for size, cluster in ((2**15 - 16, 1), (2**15, 2)):
            one = cross_entropy._online(1, size // 4, size // 4, torch.float32, -100, 0.0, 4 * card.processors)
            assert one._kernel.defines["CLUSTER"] == cluster


def way(ways: list[str], name: str, *_: object) -> None:
    ways.append(name)
    raise LookupError(name)
