"""Ends of convolutions through TMA and wgmma: sums that the blocks of a cluster share, results in contiguous images."""

import pytest
import torch
from torch.nn.functional import conv2d
from torch.nn.grad import conv2d_input, conv2d_weight

import kernelmux as kx
from kernelmux.backends.cuda._families.epilogue import PLAIN, Epilogue, EpilogueKind
from kernelmux.backends.cuda._launch.layout import layout
from kernelmux.backends.cuda.conv2d import _im2col, _pointwise
from kernelmux.backends.cuda.conv2d._problem import BACKWARD_INPUT, BACKWARD_WEIGHT, CONV2D, ConvolutionAxis
from kernelmux.backends.cuda.conv2d._tilings import ConvolutionTiling

TALL, NARROW = ConvolutionTiling(128, 64, 1.0, 4), ConvolutionTiling(64, 128, 1.0, 6)
PROCESSORS = 132


def whole(*shape: int, last: bool = True) -> torch.Tensor:
    """Small whole numbers, whose sums are exact."""
    x = torch.randint(-2, 3, shape).to(torch.bfloat16)
    return x.contiguous(memory_format=torch.channels_last) if last else x


@pytest.mark.parametrize("tile", [TALL, NARROW])
@pytest.mark.parametrize("shares", [1, 3])
def test_contiguous_images_with_a_bias(tile: ConvolutionTiling, shares: int) -> None:
    x, weight, bias = whole(2, 72, 6, 7), whole(80, 72, 3, 3), whole(80, last=False)
    h, w = ConvolutionAxis(6, 6, 3, 1, 1, 1), ConvolutionAxis(7, 7, 3, 1, 1, 1)
    end = Epilogue(EpilogueKind(bias=True), (bias, None))
    given = CONV2D, 80, layout(x), layout(weight), h, w, end.ending, tile, shares, PROCESSORS
    got = _im2col.plan(*given, shared=shares > 1, turned=True).run(x, weight, end)
    want = conv2d(x.double(), weight.double(), bias.double(), padding=1).bfloat16()
    assert got.is_contiguous() and torch.equal(got, want)


@pytest.mark.parametrize("shares", [1, 2])
def test_contiguous_gradients_of_images(shares: int) -> None:
    grad_out, weight = whole(2, 136, 5, 6), whole(136, 72, 3, 3)
    h, w = (_im2col.backwards(ConvolutionAxis(n, n, 3, 1, 1, 1)) for n in (5, 6))
    given = BACKWARD_INPUT, 72, layout(grad_out), layout(weight), h, w, PLAIN.ending, TALL, shares, PROCESSORS
    got = _im2col.plan(*given, shared=shares > 1, turned=True).run(grad_out, weight, PLAIN)
    want = conv2d_input((2, 72, 5, 6), weight.double(), grad_out.double(), padding=1).bfloat16()
    assert torch.equal(got, want)


@pytest.mark.parametrize("tile", [TALL, NARROW])
def test_shares_of_the_gradient_of_a_weight(tile: ConvolutionTiling) -> None:
    grad_out, x = whole(2, 72, 9, 10), whole(2, 64, 18, 20)
    h, w = ConvolutionAxis(18, 9, 3, 2, 1, 1), ConvolutionAxis(20, 10, 3, 2, 1, 1)
    given = BACKWARD_WEIGHT, 72, layout(grad_out), layout(x), h, w, PLAIN.ending, tile, 3, PROCESSORS
    got = _im2col.plan(*given, shared=True).run(grad_out, x, PLAIN).view(72, 3, 3, 64).permute(0, 3, 1, 2)
    want = conv2d_weight(x.double(), (72, 64, 3, 3), grad_out.double(), stride=2, padding=1).bfloat16()
    assert torch.equal(got, want)


@pytest.mark.parametrize(("splits", "shared"), [(1, False), (3, False), (3, True)])
def test_rows_of_pixels(splits: int, shared: bool) -> None:
    grad_out, x = whole(3, 72, 8, 9, last=False), whole(3, 100, 8, 9, last=False)
    made = _pointwise.plan(layout(grad_out), layout(x), PLAIN.ending, NARROW, splits, shared, PROCESSORS)
    want = conv2d_weight(x.double(), (72, 100, 1, 1), grad_out.double()).bfloat16()
    assert torch.equal(made.run(grad_out, x, PLAIN), want)


@pytest.mark.parametrize("tile", _pointwise.PAIRS)
@pytest.mark.parametrize("splits", [1, 2])
def test_rows_of_pixels_for_a_pair(tile: ConvolutionTiling, splits: int) -> None:
    """Tiles of which some have no rows at all; steps that fill the ring more than once."""
    grad_out, x = whole(3, 136, 8, 9, last=False), whole(3, 200, 8, 9, last=False)
    made = _pointwise.plan(layout(grad_out), layout(x), PLAIN.ending, tile, splits, False, 8)
    want = conv2d_weight(x.double(), (136, 200, 1, 1), grad_out.double()).bfloat16()
    assert torch.equal(made.run(grad_out, x, PLAIN), want)


@pytest.mark.filterwarnings("ignore::kernelmux.registry.errors.EmulationWarning")
@pytest.mark.parametrize("size", [(8, 9), (7, 7)])
@pytest.mark.parametrize("backend", ["cuda/pointwise", "triton/pointwise"])
def test_pointwise(backend: str, size: tuple[int, int]) -> None:
    x, weight = whole(2, 40, *size, last=False), whole(72, 40, 1, 1, last=False)
    assert torch.equal(kx.conv2d(x, weight, backend=backend), conv2d(x.double(), weight.double()).bfloat16())
    grad_out = whole(2, 72, *size, last=False)
    want = conv2d_input(x.shape, weight.double(), grad_out.double()).bfloat16()
    assert torch.equal(kx.conv2d_backward_input(grad_out, weight, backend=backend), want)


@pytest.mark.filterwarnings("ignore::kernelmux.registry.errors.EmulationWarning")
def test_pointwise_with_one_kernel() -> None:
    """Of a single row the copy engine's distance to the next one is any multiple of 16 bytes; 5 channels are none."""
    x, weight, bias = whole(1, 5, 8, 8, last=False), whole(1, 5, 1, 1, last=False), whole(1, last=False)
    want = conv2d(x.double(), weight.double(), bias.double()).bfloat16()
    assert torch.equal(kx.conv2d(x, weight, bias, backend="cuda/pointwise"), want)
