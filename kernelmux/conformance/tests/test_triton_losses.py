"""Cross entropy in Triton on rows that start misaligned: peeled, and in shared memory while programs walk down rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from kernelmux import emulator
from kernelmux.backends.triton import cross_entropy as forward
from kernelmux.backends.triton import cross_entropy_with_gradient as losses
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.util import cards

pytestmark = pytest.mark.filterwarnings("ignore:.*on the emulator", "ignore:.*FP_FUSION")
LONG = [
    (7, 40960, torch.bfloat16),
    (9, 32776, torch.bfloat16),
    (13, 50003, torch.bfloat16),
    (11, 20481, torch.float32),
    (5, 40003, torch.float32),
    (5, 60000, torch.float32),
    (5, 70001, torch.float32),
]
HELD = [
    (11, 1664, torch.bfloat16),
    (7, 4001, torch.bfloat16),
    (5, 16384, torch.bfloat16),
    (3, 30003, torch.bfloat16),
    (5, 2051, torch.float32),
    (3, 16000, torch.float32),
]


WAYS = [(*case, way) for case in LONG for way in ("two_pass", "staying")] + [(*case, "staying") for case in HELD]


@pytest.mark.parametrize(("rows", "n", "dtype", "way"), WAYS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_rows_are_more_than_multiprocessors(rows: int, n: int, dtype: torch.dtype, smoothing: float, way: str) -> None:
    """A program for each, or programs that stay, two or one for each of the two multiprocessors, and walk down rows."""
    x = torch.randn(rows, n, generator=torch.Generator().manual_seed(n)).to(dtype)
    target = torch.arange(rows) * 1489 % n
    target[0], target[1] = n - 1, -100
    two = cards.standing_for(replace(cards.table()["h200"], processors=2))
    with two, registered.backend("triton").emulation(), emulator.checks("full"):
        loss, grad = losses.cross_entropy_with_gradient(way, x, target, -100, smoothing, "mean")
    exact = x.double().requires_grad_()
    want = F.cross_entropy(exact, target, label_smoothing=smoothing)
    want.backward()
    assert exact.grad is not None
    assert torch.allclose(loss.double(), want, rtol=1e-6)
    assert torch.allclose(grad.double(), exact.grad, rtol=2**-8, atol=1e-9)


@pytest.mark.parametrize(("n", "dtype"), [(40000, torch.float16), (21000, torch.float32), (74000, torch.float32)])
def test_rows_are_alike_wherever_they_stand(n: int, dtype: torch.dtype) -> None:
    """The first one of a program is looked at on its own, the others while the gradient of the one ahead is written."""
    x = torch.randn(1, n, generator=torch.Generator().manual_seed(n)).to(dtype).repeat(5, 1)
    target = torch.full((5,), n - 3)
    one = cards.standing_for(replace(cards.table()["h200"], processors=1))
    with one, registered.backend("triton").emulation(), emulator.checks("full"), emulator.trace() as trace:
        loss, grad = losses.cross_entropy_with_gradient("staying", x, target, -100, 0.1, "none")
    assert trace.launches[0].grid[0] == (1 if n == 74000 else 2)
    assert torch.equal(loss, loss[:1].expand(5)) and torch.equal(grad, grad[:1].expand(5, n))


@pytest.mark.parametrize("rest", [0.0, torch.inf, torch.nan])
def test_a_row_that_does_not_count_has_no_gradient(rest: float) -> None:
    """Whatever its logits are; one whose target is no class has none but NaN."""
    n = 40001
    x = torch.randn(4, n, generator=torch.Generator().manual_seed(n)).bfloat16()
    x[:, 5::777] = rest
    target = torch.tensor([7, -100, n, 9])
    one = cards.standing_for(replace(cards.table()["h200"], processors=1))
    with one, registered.backend("triton").emulation(), emulator.checks("full"):
        loss, grad = losses.cross_entropy_with_gradient("staying", x, target, -100, 0.0, "none")
    assert loss[1] == 0 and not grad[1].any()
    assert loss[2].isnan() and grad[2].isnan().all()
    assert bool(loss[0].isnan()) == bool(grad[3].isnan().all()) == (rest != 0)


@pytest.mark.parametrize(("n", "dtype"), [(n, dtype) for _, n, dtype in LONG])
def test_long_rows_stay(n: int, dtype: torch.dtype) -> None:
    """Whether they start aligned or not."""
    launch = losses._staying((5, n), (n, 1), dtype, 1, -100, 0.0, 0, (4, 232448, 1))
    assert launch is not None
    assert launch.meta["PEELED"] == (0 if n % 8 == 0 else 16 // dtype.itemsize)
    assert losses._staying((5, 2 * n), (2 * n, 2), dtype, 1, -100, 0.0, 0, (4, 232448, 1)) is None


@pytest.mark.parametrize(
    ("n", "shares", "twice"), [(50257, 2, 0), (65536, 2, 0), (65544, 1, 0), (131072, 1, 0), (256001, 1, 8)]
)
def test_chunks_of_rows_that_stay(n: int, shares: int, twice: int) -> None:
    """Two programs of a multiprocessor where they keep a row each, else one. All chunks of a row have a place."""
    launch = losses._staying((264, n), (n, 1), torch.bfloat16, 1, -100, 0.0, 0, (132, 232448, 1))
    assert launch is not None
    meta = launch.meta
    assert (launch.grid[0], meta["num_warps"], launch.scalars[-1]) == (132 * shares, 32 // shares, twice)
    assert meta["AGAIN"] == (twice > 0)
    assert meta["RING"] + twice * meta["BATCH"] + meta["TAIL"] == -(-(n // 8) // (32 * meta["num_warps"]))
    assert shares * (meta["RING"] * meta["BLOCK"] * 2 + 1024) <= 233472


@pytest.mark.parametrize(("n", "dtype"), [(n, dtype) for _, n, dtype in HELD])
def test_programs_hold_rows_of_up_to_64_kib(n: int, dtype: torch.dtype) -> None:
    assert losses._staying((5, n), (n, 1), dtype, 1, -100, 0.0, 0, (4, 232448, 1)) is None
    meta = losses._two_pass((5, n), (n, 1), dtype, 1, -100, 0.0, 0, (4, 232448, 1)).meta
    assert (meta["BATCH"], meta["ROWS"]) == (0, 1)
    assert meta["HELD"] * meta["BLOCK"] * dtype.itemsize <= 128 * 32 * meta["num_warps"]


@pytest.mark.parametrize("n", [100, 1700])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_kernels_take_the_losses(n: int, reduction: str) -> None:
    """What counts rows comes before, for a mean; what adds losses up after. Several programs do so for many rows."""
    rows = 16400 if n == 100 else 300
    x, target = torch.randn(rows, n, generator=torch.Generator().manual_seed(n)), torch.arange(rows) % n
    target[::3] = -100
    with registered.backend("triton").emulation(), emulator.checks("fast"), emulator.trace() as trace:
        loss, _ = losses.cross_entropy_with_gradient("two_pass", x, target, -100, 0.1, reduction)
    want = F.cross_entropy(x.double(), target, reduction=reduction, label_smoothing=0.1)
    assert torch.allclose(loss.double(), want, rtol=1e-6)
    grids = [launch.grid[0] for launch in trace.launches]
    adding = [3, 1] if n == 100 else [1]
    count = [8 if n == 100 else 1] if reduction == "mean" else []
    assert grids == [*count, rows // (16 if n == 100 else 1), *(adding if reduction != "none" else [])]


def test_the_loss_reads_whole_vectors_of_misaligned_rows() -> None:
    """But for the ends of a row; a request of a warp has 256 elements then, and 32 if it reads them one by one."""
    n = 4099
    x = torch.randn(200, n, generator=torch.Generator().manual_seed(n)).bfloat16()
    target = torch.arange(200) * 20
    with registered.backend("triton").emulation(), emulator.trace() as trace:
        loss, lse = forward.cross_entropy(x, target, -100, 0.0, "none")
    assert torch.allclose(loss, F.cross_entropy(x.float(), target, reduction="none"), rtol=1e-5)
    assert torch.allclose(lse, x.float().logsumexp(1), rtol=1e-6)
    assert trace.launches[0].total("requests", "global", "load") < 1.5 * x.numel() / 256


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_few_long_rows_are_read_in_pieces(smoothing: float, reduction: str) -> None:
    """By several programs each, and one more puts them together."""
    n = 33001
    x = torch.randn(3, n, generator=torch.Generator().manual_seed(n)).bfloat16()
    target = torch.tensor([0, -100, n - 1])
    with registered.backend("triton").emulation(), emulator.trace() as trace:
        loss, lse = forward.cross_entropy(x, target, -100, smoothing, reduction)
    expected = F.cross_entropy(x.double(), target, reduction=reduction, label_smoothing=smoothing)
    assert torch.allclose(loss.double(), expected, rtol=1e-5)
    assert torch.allclose(lse.double(), x.double().logsumexp(1), rtol=1e-6)
    assert [launch.grid for launch in trace.launches] == [(18, 1, 1), (1, 1, 1)]


@pytest.mark.parametrize("way", ["two_pass", "staying"])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize(
    ("rows", "n", "dtype", "smoothing"),
    [(1, 50257, torch.bfloat16, 0.1), (3, 24584, torch.float16, 0.0), (5, 33001, torch.float32, 0.1)],
)
def test_gradients_of_few_long_rows_are_taken_in_pieces(
    rows: int, n: int, dtype: torch.dtype, smoothing: float, reduction: str, way: str
) -> None:
    """A target in the last column, one that does not count, and one that is no class."""
    x = torch.randn(rows, n, generator=torch.Generator().manual_seed(n)).to(dtype)
    target = torch.tensor([n - 1, -100, n // 2, n, 0])[:rows]
    with registered.backend("triton").emulation(), emulator.checks("full"), emulator.trace() as trace:
        loss, grad = losses.cross_entropy_with_gradient(way, x, target, -100, smoothing, reduction)
    counts, classes = target != -100, target < n
    exact = x.double().requires_grad_()
    safe = torch.where(classes, target, 0)
    each = F.cross_entropy(exact, safe, reduction="none", label_smoothing=smoothing)
    (each.sum() / (counts.sum() if reduction == "mean" else 1)).backward()
    assert exact.grad is not None
    each = torch.where(classes, each.detach(), torch.nan)
    want = each if reduction == "none" else each.sum() / (counts.sum() if reduction == "mean" else 1)
    assert torch.allclose(loss.double(), want, rtol=1e-6, equal_nan=True)
    want = torch.where(classes[:, None], exact.grad, torch.nan)
    assert torch.allclose(grad.double(), want, rtol=2**-7, atol=1e-7, equal_nan=True)
    pieces, tiles = (-(-n // size) for size in (4096, 8192 // dtype.itemsize))
    assert [launch.grid[0] for launch in trace.launches] == [rows * pieces, 1 + rows * tiles]


@pytest.mark.parametrize(("rows", "n"), [(1, 2**25), (4, 24584), (4, 2**23)])
def test_which_rows_are_few_and_long(rows: int, n: int) -> None:
    """One row more than multiprocessors, shorter rows and strided ones are not; nor more pieces than a program holds.

    Of rows of an odd length there are half as many.
    """

    def pieces(rows: int, n: int, step: int = 1) -> bool:
        shape, strides = (rows, n), (n * step, step)
        return losses._in_pieces(shape, strides, torch.bfloat16, 1, -100, 0.0, "mean", -1) is not None

    with cards.standing_for(replace(cards.table()["h200"], processors=4)):
        assert pieces(rows, n)
        assert not pieces(5, n) and not pieces(rows, 24576) and not pieces(rows, n, 2) and not pieces(rows, 2**25 + 8)
        assert pieces(2, 24585) and not pieces(3, 24585)
