"""Gradients of norms of many short rows in Triton: several rows to a tile, wherever each begins."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from kernelmux import emulator
from kernelmux.backends.triton import add_rms_norm_backward, layer_norm_backward, rms_norm_backward
from kernelmux.backends.triton._launch.launch import shared_bytes
from kernelmux.backends.triton._rows import short_gradients
from kernelmux.backends.triton._rows.short_gradients import UNEVEN, many_short, short_rule
from kernelmux.registry.util import cards

OPS: dict[str, Any] = {
    "rms_norm": rms_norm_backward.VARIANTS,
    "layer_norm": layer_norm_backward.VARIANTS,
    "add_rms_norm": add_rms_norm_backward.VARIANTS,
}
T = torch.Tensor
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
pytestmark = pytest.mark.filterwarnings("ignore:.*on the emulator")


def tensors(op: str, rows: int, n: int, dtype: torch.dtype) -> tuple[tuple[T, ...], T]:
    """grad, of add_rms_norm that of the total, and x; the weight."""
    rng = torch.Generator().manual_seed(rows * n)
    inputs = [torch.randn(rows, n, generator=rng).to(dtype) for _ in range(3 if op == "add_rms_norm" else 2)]
    return tuple(inputs), torch.randn(n, generator=rng).to(dtype)


def fused(op: str, inputs: tuple[T, ...], weight: T) -> tuple[T, ...]:
    with emulator.triton_active():
        return OPS[op]["fused"].fn(*inputs, weight, 1e-5)  # type: ignore[no-any-return]


def wanted(op: str, inputs: tuple[T, ...], weight: T) -> tuple[T, ...]:
    """By autograd, in fp64."""
    x, w, n = inputs[-1].double().requires_grad_(), weight.double().requires_grad_(), weight.numel()
    if op == "layer_norm":
        bias = torch.zeros(n).double().requires_grad_()
        return torch.autograd.grad(torch.layer_norm(x, (n,), w, bias, 1e-5), (x, w, bias), inputs[0].double())
    grad_x, grad_w = torch.autograd.grad(torch.rms_norm(x, (n,), w, 1e-5), (x, w), inputs[0].double())
    return (grad_x + inputs[1].double() if op == "add_rms_norm" else grad_x), grad_w


def check(op: str, inputs: tuple[T, ...], weight: T) -> None:
    with emulator.checks("full"):
        got = fused(op, inputs, weight)
    for mine, exact in zip(got, wanted(op, inputs, weight), strict=True):
        eps, n = max(torch.finfo(weight.dtype).eps, 4e-6), weight.numel()
        least = 1e-6 * float(exact.abs().max()) * math.sqrt(n) if n > 2 else 1e-4  # differences of equal numbers
        assert mine.dtype == weight.dtype and torch.allclose(mine.double(), exact, rtol=eps, atol=least)


@pytest.fixture
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(short_gradients, "MANY", 1)
    cards.forget()
    yield
    cards.forget()


@pytest.fixture
def one_processor(few_are_many: None) -> Iterator[None]:
    """Programs have several tiles each."""
    with cards.standing_for(dataclasses.replace(cards.named("h200"), processors=1)):
        yield


@pytest.mark.parametrize(
    ("rows", "n", "itemsize", "short"),
    [
        (1, 128, 2, True),
        (1, 400, 2, True),
        (65536, 408, 2, False),
        (65536, 1024, 2, False),
        (87000, 200, 4, True),
        (87000, 204, 4, False),
        (6000, 65, 2, True),
        (5999, 65, 2, False),
        (2000, 511, 2, False),
        (60000, 1097, 2, True),
        (60000, 1101, 2, False),
        (130000, 258, 4, True),
        (32768, 1026, 4, False),
    ],
)
def test_aligned_rows_are_dealt_out_by_their_length_and_others_if_many(
    rows: int, n: int, itemsize: int, short: bool
) -> None:
    assert many_short(rows, n, itemsize) == short


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize(("inputs", "count"), [(2, 1), (2, 2), (3, 1)])
def test_a_tile_holds_its_rows_and_the_next_one_begins_alike(itemsize: int, inputs: int, count: int) -> None:
    for n in range(1, UNEVEN // itemsize + 1):
        if not many_short(2**22, n, itemsize):
            continue
        config = short_rule(n, itemsize, inputs, 232448, count)
        rows, block, chunks, width = (config[name] for name in ("ROWS", "BLOCK", "CHUNKS", "WIDTH"))
        peeled = config["PERIOD"] > 1
        assert rows * n % width == 0 and rows % config["PERIOD"] == 0
        assert chunks * block >= n // width * width and config["FULL"] <= chunks
        assert config["FULL"] * block <= max(0, n - (width - 1) * peeled)
        assert width * itemsize >= 8 and (peeled or n % width == 0)
        assert not peeled or block >= 2 * width * width, "a lane for each edge"
        assert rows * chunks * block * inputs * itemsize * (config["STAGES"] - 1) * config["PER_SM"] < 232448


TILES = [
    (33, (32, 32, 4)),
    (65, (32, 32, 4)),
    (64, (32, 64, 4)),
    (96, (32, 32, 3)),
    (128, (16, 64, 4)),
    (130, (16, 32, 4)),
]
TILES += [(197, (8, 64, 4)), (256, (8, 128, 4)), (257, (8, 64, 4)), (769, (4, 128, 3)), (1025, (4, 128, 2))]


@pytest.mark.parametrize(("n", "tile"), TILES)
def test_tiles_are_those_that_were_fastest(n: int, tile: tuple[int, int, int]) -> None:
    config = short_rule(n, 2, 2, 232448, 1)
    assert (config["ROWS"], config["BLOCK"], config["PER_SM"]) == tile


@pytest.mark.parametrize("name", ["t4", "a100", "rtx4090", "rtx5090"])
def test_tiles_that_wait_fit_a_card(name: str) -> None:
    with cards.standing_for(name) as card:
        for n, itemsize in ((65, 4), (200, 4), (257, 4), (550, 4), (384, 2), (1025, 2), (1100, 2)):
            config = short_rule(n, itemsize, 3, shared_bytes(-1), 1)
            waiting = 3 * itemsize * config["ROWS"] * config["CHUNKS"] * config["BLOCK"] * (config["STAGES"] - 1)
            assert config["PER_SM"] * (waiting + 1024) <= card.shared_per_processor
            assert config["PER_SM"] * 32 * config["num_warps"] * config["maxnreg"] <= card.registers


ROWS = [(300, 65, BF16), (270, 66, BF16), (130, 130, FP16), (90, 197, BF16), (75, 257, FP32), (90, 258, FP32)]
ROWS += [(19, 1025, BF16), (19, 1097, FP16)]


@pytest.mark.usefixtures("one_processor")
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("rows", "n", "dtype"), ROWS)
def test_rows_that_begin_anywhere(op: str, rows: int, n: int, dtype: torch.dtype) -> None:
    check(op, *tensors(op, rows, n, dtype))


@pytest.mark.usefixtures("one_processor")
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("rows", "n", "dtype"), [(130, 128, BF16), (300, 96, FP16), (1100, 16, BF16), (40, 384, FP16)])
def test_aligned_rows(op: str, rows: int, n: int, dtype: torch.dtype) -> None:
    check(op, *tensors(op, rows, n, dtype))


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 9, 31, 33])
@pytest.mark.parametrize("rows", [1, 3, 70])
def test_rows_shorter_than_a_chunk_and_fewer_than_a_tile(op: str, rows: int, n: int) -> None:
    check(op, *tensors(op, rows, n, FP32 if n % 2 else BF16))


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("n", [64, 65, 130])
def test_inputs_that_begin_between_two_aligned_addresses(op: str, n: int) -> None:
    """With a weight that is a column of a matrix."""
    inputs, weight = tensors(op, 40, n, BF16)
    shifted = tuple(torch.empty(40 * n + k, dtype=BF16)[k:].view(40, n).copy_(x) for k, x in enumerate(inputs, 1))
    check(op, shifted, torch.stack((weight, weight), 1)[:, 0])


@pytest.mark.usefixtures("one_processor")
@pytest.mark.parametrize("op", OPS)
def test_nothing_is_read_or_written_twice(op: str) -> None:
    inputs, weight = tensors(op, 300, 65, BF16)
    with emulator.trace() as trace:
        fused(op, inputs, weight)
    kinds = [kind for line in trace.launches[0].lines for kind in line.traffic if kind.space == "global"]
    copied = sum(kind.requested for kind in kinds if kind.operation == "copy")
    assert copied < len(inputs) * inputs[0].nbytes, "edges are read by threads"
    assert copied >= len(inputs) * inputs[0].nbytes * 58 // 65


@pytest.mark.parametrize("n", [16, 64, 96, 128, 256, 512])
def test_the_gradient_of_an_aligned_row_does_not_depend_on_others(n: int) -> None:
    for op in OPS:
        inputs, weight = tensors(op, 150, n, BF16)
        many = fused(op, inputs, weight)[0]
        few = fused(op, tuple(x[-5:].clone() for x in inputs), weight)[0]
        assert torch.equal(many[-5:], few)
