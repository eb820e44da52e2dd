"""fp32 convolutions by six products of bf16 planes, in CUDA: every tile, numbers that planes cannot hold, which calls."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch.nn.grad import conv2d_input, conv2d_weight

from kernelmux.backends.cuda import conv2d, conv2d_backward_input, conv2d_backward_weight
from kernelmux.backends.cuda._families import planes
from kernelmux.backends.cuda._families.epilogue import PLAIN
from kernelmux.backends.cuda._launch.layout import layout
from kernelmux.backends.cuda._launch.runtime import card
from kernelmux.backends.cuda.conv2d import _bf16x6, _bf16x6_positions
from kernelmux.backends.cuda.conv2d._bf16x6 import TILINGS, PixelPlanesTiling
from kernelmux.backends.cuda.conv2d._planes import split
from kernelmux.backends.cuda.conv2d._plans import sums_plan
from kernelmux.backends.cuda.conv2d._sums import in_one_launch
from kernelmux.backends.cuda.conv2d_backward_input import _bf16x6 as _bf16x6_input
from kernelmux.emulator import checks, nvrtc
from kernelmux.registry import catalog
from kernelmux.registry.choice import decide
from kernelmux.registry.util import cards

needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))
LAST = torch.channels_last
ORDERS = (torch.contiguous_format, LAST)
ONE = (1, 1)


@pytest.fixture(autouse=True)
def _hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cards.VARIABLE, "h200")


def draw(*shape: int, last: bool = False) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return x.contiguous(memory_format=LAST) if last else x


def error(y: torch.Tensor, want: torch.Tensor, magnitude: torch.Tensor) -> float:
    """The largest, in units of 2^-24 of the sum of magnitudes."""
    return float(((y.double() - want).abs() / magnitude).max()) * 2**24


LAID = {
    "contiguous": lambda x: x,
    "channels-last": lambda x: x.contiguous(memory_format=LAST),
    "rows apart": lambda x: torch.cat([x, x], 2)[:, :, : x.shape[2]],
    "columns apart": lambda x: torch.cat([x, x], 3)[..., : x.shape[3]],
    "expanded": lambda x: x[:1].expand(x.shape),
    "expanded channels-last": lambda x: x[:1].contiguous(memory_format=LAST).expand(x.shape),
    "turned": lambda x: x.mT.contiguous().mT,
}


@needs_nvrtc
@pytest.mark.parametrize("lies", LAID)
@pytest.mark.parametrize("shape", [(2, 5, 7, 6), (3, 67, 3, 3), (2, 1, 1, 4), (2, 64, 1, 1)], ids=str)
def test_planes_add_up_to_the_images(lies: str, shape: tuple[int, ...]) -> None:
    """Channels side by side, whatever lies side by side before; behind the last channel is zero."""
    x = LAID[lies](draw(*shape))
    flags = planes.flags_for(x, 2).fill_(-1)
    y = split(x, flags, 1).double().unflatten(-1, (3, -1))
    assert torch.equal(y.sum(-2)[..., : shape[1]].permute(0, 3, 1, 2) / planes.SCALE, x.double())
    assert not y[..., shape[1] :].any()
    assert not flags[len(flags) // 2 :].any() and (flags[: len(flags) // 2] == -1).all()


@needs_nvrtc
@pytest.mark.parametrize("number", [torch.inf, torch.nan, 2.0**28 * 1.0000002, 2.0**-135, -1e-45])
def test_a_number_that_planes_cannot_hold_is_met(number: float) -> None:
    for place in ((0, 0, 0, 0), (1, 69, 5, 6), (1, 40, 3, 2)):
        x = draw(2, 70, 6, 7)
        x[place] = number
        flags = planes.flags_for(x)
        split(x, flags, 0)
        assert flags.any(), place


@needs_nvrtc
@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_a_convolution_is_as_exact_as_in_fp32(tiling: PixelPlanesTiling, last: bool) -> None:
    """Tiles that hang over, more steps than a ring has stages, incomplete steps of a tap, K in pieces, a bias."""
    x, weight = draw(2, 72, 9, 8, last=last), draw(tiling.n + 2, 72, 2, 3, last=last)
    bias, along = draw(len(weight)), (ONE, (1, 2), ONE)
    want = F.conv2d(x.double(), weight.double(), bias.double(), *along)
    magnitude = F.conv2d(x.double().abs(), weight.double().abs(), bias.double().abs(), *along)
    c = conv2d.problem(layout(x), layout(weight), LAST if last else torch.contiguous_format, *along)
    for splits in (1, 3):
        made = _bf16x6.plan(c, replace(card(x), processors=2), _bf16x6.ending(bias).ending, tiling, splits)
        with checks("full"):
            y = made.run(x, weight, bias)
        assert error(y, want, magnitude) < 3, splits
        assert y.is_contiguous(memory_format=LAST if last else torch.contiguous_format)


@needs_nvrtc
@pytest.mark.parametrize("tiling", _bf16x6_input.TILES, ids=str)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("stride", [(1, 1), (2, 1), (2, 3)], ids=str)
def test_gradients_of_images_are_as_exact(tiling: PixelPlanesTiling, last: bool, stride: tuple[int, int]) -> None:
    """Phases of several taps, of one and of none; of stride 1, K in pieces."""
    shape, along = (2, tiling.n + 2, 8, 7), (stride, (1, 0), ONE)
    weight = draw(72, shape[1], 3, 2, last=last)
    grad_out = draw(*F.conv2d(torch.zeros(shape), weight, None, *along).shape, last=last)
    rest = [(n + 2 * pad - k) % step for n, pad, k, step in zip(shape[2:], (1, 0), (3, 2), stride, strict=True)]
    want = conv2d_input(shape, weight.double(), grad_out.double(), *along)
    magnitude = conv2d_input(shape, weight.double().abs(), grad_out.double().abs(), *along)
    c = conv2d_backward_input.problem(layout(grad_out), layout(weight), ORDERS[last], *along, tuple(rest))
    few = replace(card(weight), processors=2)
    plans = [_bf16x6_input.plan(c, few, tiling)]
    if stride == ONE:
        plans = [_bf16x6.plan(c, few, PLAIN.ending, tiling, splits) for splits in (1, 3)]
    for made in plans:
        with checks("full"):
            grad_x = made.run(grad_out, weight)
        met = magnitude > 0
        assert error(grad_x[met], want[met], magnitude[met]) < 3 and not grad_x[~met].any()
        assert grad_x.is_contiguous(memory_format=ORDERS[last])


@needs_nvrtc
@pytest.mark.parametrize("tiling", _bf16x6_positions.TILES, ids=str)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kernel", [(2, 3), (1, 1)], ids=str)
def test_gradients_of_weights_are_as_exact(tiling: PixelPlanesTiling, last: bool, kernel: tuple[int, int]) -> None:
    """Filters and taps beyond a tile, positions beyond the ring of stages; K in pieces and whole."""
    x, along = draw(2, 72, 13, 9, last=last), ((1, 2), (1, 0), ONE)
    weight = torch.zeros(tiling.m + 2, 72, *kernel)
    grad_out = draw(*F.conv2d(x, weight, None, *along).shape, last=last)
    want = conv2d_weight(x.double(), weight.shape, grad_out.double(), *along)
    magnitude = conv2d_weight(x.double().abs(), weight.shape, grad_out.double().abs(), *along)
    c = conv2d_backward_weight.problem(layout(grad_out), layout(x), ORDERS[last], kernel, *along)
    for splits in (1, 2):
        made = _bf16x6_positions.plan(c, replace(card(x), processors=3), tiling, splits)
        with checks("full"):
            grad_weight = made.run(grad_out, x)
        assert error(grad_weight, want, magnitude) < 3, splits
        assert grad_weight.is_contiguous(memory_format=ORDERS[last])


@needs_nvrtc
@pytest.mark.parametrize("number", [torch.inf, torch.nan, 1e30, 1e-42])
@pytest.mark.parametrize("last", [False, True])
def test_all_is_computed_anew_where_planes_cannot_hold_a_number(number: float, last: bool) -> None:
    x, weight, bias = draw(2, 8, 6, 5, last=last), draw(9, 8, 3, 3, last=last), draw(9)
    c = conv2d.problem(layout(x), layout(weight), LAST if last else torch.contiguous_format, ONE, ONE, ONE)
    plain = sums_plan(c, in_one_launch(c, card(x)))
    for place, odd in ((x, (1, 7, 5, 4)), (weight, (8, 7, 2, 2))):
        kept, place[odd] = place[odd].clone(), number
        y, want = conv2d.VARIANTS["bf16x6"].fn(x, weight, bias, ONE, ONE, ONE), plain.run(x, weight, bias)
        place[odd] = kept
        assert torch.equal(y.nan_to_num(), want.nan_to_num()) and torch.equal(y.isnan(), want.isnan())


@needs_nvrtc
@pytest.mark.parametrize("number", [torch.nan, 1e-42])
def test_gradients_are_computed_anew_where_planes_cannot_hold_a_number(number: float) -> None:
    x, weight, grad_out = draw(2, 8, 6, 5), draw(9, 8, 3, 3), draw(2, 9, 3, 3)
    grad_out[1, 8, 2, 2] = number
    along = ((2, 2), ONE, ONE)
    calls = {
        conv2d_backward_input: (grad_out, weight, *along, (1, 0)),
        conv2d_backward_weight: (grad_out, x, (3, 3), *along),
    }
    for module, given in calls.items():
        lead, other = given[:2]
        c = module.problem(layout(lead), layout(other), torch.contiguous_format, *given[2:])
        got, want = module.VARIANTS["bf16x6"].fn(*given), sums_plan(c, in_one_launch(c, card(x))).run(lead, other)
        assert torch.equal(got.nan_to_num(), want.nan_to_num()) and torch.equal(got.isnan(), want.isnan())


@pytest.mark.parametrize(
    ("case", "variant"),
    [
        ("x=16x256x28x28 weight=256x256x3x3 padding=1", "bf16x6"),
        ("x=8x512x28x28 weight=256x512x1x1", "bf16x6"),
        ("x=32x3x224x224 weight=64x3x7x7 stride=2 padding=3", "tiled"),
        ("x=1x64x14x14 weight=64x64x3x3 padding=1", "tiled"),
    ],
)
def test_large_convolutions_are_what_it_is_for(case: str, variant: str) -> None:
    """A call that names no variant; one that does gets it whatever the size."""
    spec = catalog.spec("conv2d")
    call = spec.hypothetical(spec.case(case), torch.float32, torch.device("cuda"), (9, 0))
    able = [v.variant for v in decide.verdicts(call, "cuda", elsewhere=True) if v.able]
    assert able[-1] == variant
    assert [v.able for v in decide.verdicts(call, "cuda", "bf16x6", elsewhere=True)] == [True]
