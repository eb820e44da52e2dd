"""Gradients of norms of rows that fit a warp, many of them side by side in a block that walks down."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from kernelmux import emulator
from kernelmux.backends.cuda import add_rms_norm_backward, layer_norm_backward, rms_norm_backward
from kernelmux.backends.cuda._families import row_gradients
from kernelmux.backends.cuda._families.row_gradients import SIDE, RowsTogether, gradient_plan, side_by_side
from kernelmux.backends.cuda._families.rows import RowWork
from kernelmux.emulator import nvrtc
from kernelmux.registry.util import cards

RMS, LAYER = rms_norm_backward._GRADIENTS, layer_norm_backward._GRADIENTS
OPS = (RMS, LAYER, add_rms_norm_backward._GRADIENTS)
BF16 = torch.bfloat16
pytestmark = pytest.mark.filterwarnings("ignore:.*on the emulator")
needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))


def tensors(rows: int, n: int, dtype: torch.dtype) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    rng = torch.Generator().manual_seed(rows * n)
    x, grad = (torch.randn(rows, n, generator=rng).to(dtype) for _ in range(2))
    return (grad, x), torch.randn(n, generator=rng).to(dtype)


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("rule", [SIDE, RowsTogether(16, 16384, 512)])
def test_a_plan_of_rows_side_by_side_holds_them(itemsize: int, rule: RowsTogether) -> None:
    for n in range(1, 2048 // itemsize + 1):
        for width in (w for w in (1, 2, 4, 8) if n % w == 0 and w * itemsize <= 16):
            plan = side_by_side(n, itemsize, width, rule)
            assert plan.group in (1, 2, 4, 8, 16, 32)
            assert plan.threads == rule.block
            assert plan.group * plan.vectors * plan.width >= n
            assert plan.inside * plan.group * plan.width <= n
            assert plan.threads * plan.blocks <= 1024


@pytest.mark.parametrize(
    ("n", "group", "vectors", "rows", "blocks"),
    [(16, 2, 1, 64, 8), (64, 4, 2, 32, 4), (96, 4, 3, 32, 2), (128, 8, 2, 16, 4), (1024, 32, 4, 4, 2)],
)
def test_short_rows_have_few_lanes_and_many_threads(n: int, group: int, vectors: int, rows: int, blocks: int) -> None:
    plan, _ = gradient_plan(n, 2, 8)
    assert (plan.group, plan.vectors, plan.rows, plan.blocks) == (group, vectors, rows, blocks)


@pytest.mark.parametrize(
    ("n", "dtype", "width", "walk", "found"),
    [
        (65, BF16, 1, "pipelined", (4, True)),
        (1023, BF16, 1, "pipelined", (4, True)),
        (1025, BF16, 1, "pipelined", (8, True)),
        (63, BF16, 1, "pipelined", (1, False)),  # short
        (65, BF16, 1, "two_pass", (1, False)),
        (130, BF16, 2, "pipelined", (2, False)),  # brought to the ring as they are
        (65, torch.float32, 1, "pipelined", (1, False)),
        (1025, BF16, 1, "two_pass", (8, True)),
    ],
)
def test_short_rows_of_single_elements_are_peeled(
    n: int, dtype: torch.dtype, width: int, walk: str, found: tuple[int, bool]
) -> None:
    work = RowWork(9, n, 1, dtype, width, 1)
    peeled = row_gradients._peeled(work, (torch.empty(9, n, dtype=dtype),) * 2, walk)
    assert (peeled.width, peeled.peeled) == found
    shifted = torch.empty(9 * n + 1, dtype=dtype)[1:].view(9, n)
    assert row_gradients._peeled(work, (shifted, shifted), walk) == work, "not where inputs begin misaligned"


@pytest.mark.parametrize("n", [65, 67, 131, 197, 257, 513, 1023, 1025, 4097])
def test_rows_of_a_thread_begin_alike(n: int) -> None:
    for rows in (1, 5, 9, 31, 100, 1000, 4096, 100003):
        for op in OPS:
            work = RowWork(rows, n, 1, BF16, 1, 1)
            work = row_gradients._peeled(work, (torch.empty(1, n, dtype=BF16),), "pipelined")
            launch, blocks = row_gradients._staying(op, work, 1e-5, 132, 233472)
            side = gradient_plan(n, 2, work.width, work.peeled)[0].rows
            assert work.peeled and (blocks * side >= rows or blocks * side * n % work.width == 0)
            assert launch._shared >= 4 * side * n * (side > 1), "room for the sums of the block"


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of one warp, each with several steps."""
    monkeypatch.setattr(row_gradients, "SIDE", RowsTogether(SIDE.held, SIDE.together, 32))
    monkeypatch.setattr(row_gradients, "_FIRST_BLOCKS", 1)
    monkeypatch.setattr(row_gradients, "_LEAST_ROWS", 100)
    cards.forget()
    yield
    cards.forget()


SIZES = [(70, 128), (300, 16), (37, 96), (5, 64), (41, 65), (300, 197), (19, 257), (9, 1023)]


@needs_nvrtc
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", [BF16, torch.float32])
@pytest.mark.parametrize(("rows", "n"), SIZES)
def test_gradients_of_short_rows_are_right(rows: int, n: int, dtype: torch.dtype) -> None:
    """Where some of a block's rows are beyond the last, and where there are fewer than it has side by side."""
    inputs, weight = tensors(rows, n, dtype)
    for op, norm in ((RMS, "rms_norm"), (LAYER, "layer_norm")):
        x, w, bias = inputs[1].double().requires_grad_(), weight.double().requires_grad_(), torch.zeros(n).double()
        bias.requires_grad_()
        wanted = (x, w, bias)[: 1 + len(op.sums)]
        y = torch.rms_norm(x, (n,), w, 1e-5) if norm == "rms_norm" else torch.layer_norm(x, (n,), w, bias, 1e-5)
        want = torch.autograd.grad(y, wanted, inputs[0].double())
        with emulator.checks("full"):
            got = op.run("pipelined", inputs, weight, 1e-5)
        for mine, exact in zip(got, want, strict=True):
            scale = float(exact.abs().max())
            assert torch.allclose(
                mine.double(), exact, rtol=max(torch.finfo(dtype).eps, 2e-6), atol=1e-6 * scale * math.sqrt(n)
            )


@needs_nvrtc
@pytest.mark.parametrize("n", [64, 96, 128])
def test_the_gradient_of_a_short_row_does_not_depend_on_others(n: int) -> None:
    (grad, x), weight = tensors(300, n, BF16)
    many = RMS.run("pipelined", (grad, x), weight, 1e-5)[0]
    few = RMS.run("pipelined", (grad[-5:].clone(), x[-5:].clone()), weight, 1e-5)[0]
    assert torch.equal(many[-5:], few)


@needs_nvrtc
@pytest.mark.parametrize("n", [16, 128])
def test_nothing_is_read_beyond_the_last_short_row(n: int) -> None:
    """Blocks that are ahead of what there is would all ask for the same lines of memory."""
    inputs, weight = tensors(70, n, BF16)
    with emulator.trace() as trace:
        RMS.run("pipelined", inputs, weight, 1e-5)
    kinds = [kind for line in trace.launches[0].lines for kind in line.traffic]
    copied = sum(kind.requested for kind in kinds if (kind.space, kind.operation) == ("global", "copy"))
    assert copied == 2 * inputs[0].nbytes
