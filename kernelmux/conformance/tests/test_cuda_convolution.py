"""The tiles of conv2d on CUDA that only large calls choose, and which tiles and pieces calls do choose."""

from __future__ import annotations

import pytest
import torch

from kernelmux import emulator
from kernelmux.backends.cuda import conv2d, conv2d_backward_input, conv2d_backward_weight
from kernelmux.backends.cuda._families.epilogue import PLAIN
from kernelmux.backends.cuda._launch.layout import layout
from kernelmux.backends.cuda._launch.runtime import Source
from kernelmux.backends.cuda.conv2d import _im2col, _image_rows, _shared_rows
from kernelmux.backends.cuda.conv2d import _plans as plans
from kernelmux.backends.cuda.conv2d._pixel_copies import copied
from kernelmux.backends.cuda.conv2d._plans import ConvolutionTile
from kernelmux.backends.cuda.conv2d._problem import Convolution
from kernelmux.backends.cuda.conv2d_backward_input import _phases, _strided
from kernelmux.backends.cuda.matmul._wgmma import WgmmaTiling
from kernelmux.emulator import nvrtc
from kernelmux.registry import catalog
from kernelmux.registry.call import dispatch
from kernelmux.registry.spec.sliding_windows import Window

MULTIPROCESSORS = 132
MMA = (plans.IMPLICIT_GEMM, "conv2d_implicit_gemm")
WGMMA = (plans.WGMMA, "conv2d_implicit_gemm_wgmma")
MMA_TILES = [(MMA, ConvolutionTile(m, n, 64, 128, blocks=2, stages=3)) for m, n in ((128, 128), (128, 64), (64, 128))]
WGMMA_TILES = [(WGMMA, plans.wgmma_tile(m, n)) for m, n in ((128, 256), (128, 64), (64, 128))]
OPERATORS = {m.__name__.rpartition(".")[2]: m for m in (conv2d, conv2d_backward_input, conv2d_backward_weight)}
TMA_TILES = [(op, tile) for number, op in enumerate(OPERATORS) for tile in _im2col.tilings(number)]
STRIDE = PADDING = DILATION = (1, 1)
ORDERS = (torch.contiguous_format, torch.channels_last)
needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))


def integers(*shape: int, order: torch.memory_format) -> torch.Tensor:
    """Small ones, of which all sums are exact in fp32 and fp16."""
    found = torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(sum(shape)))
    return found.half().contiguous(memory_format=order)


def convolution(x: torch.Tensor, weight: torch.Tensor) -> Convolution:
    return conv2d.problem(layout(x), layout(weight), torch.contiguous_format, STRIDE, PADDING, DILATION)


@needs_nvrtc
@pytest.mark.parametrize(
    ("kernel", "tile"), MMA_TILES + WGMMA_TILES, ids=lambda x: str(x if isinstance(x, ConvolutionTile) else x[1])
)
def test_every_tile_is_exact(kernel: tuple[Source, str], tile: ConvolutionTile) -> None:
    """Each kernel in both orders: the first of its tiles has channels last, the others have columns last."""
    order = ORDERS[tile in (MMA_TILES[0][1], WGMMA_TILES[0][1])]
    x, weight = integers(1, 8, 9, 15, order=order), integers(136, 8, 3, 3, order=order)
    plan = plans.halves_plan(*kernel, convolution(x, weight), tile, MULTIPROCESSORS)
    want = catalog.spec("conv2d").reference(x.double(), weight.double(), None, STRIDE, PADDING, DILATION)
    assert torch.equal(plan.run(x, weight).double(), want)


@needs_nvrtc
@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("n", [64, 128])
def test_every_band_is_exact(rows: int, n: int) -> None:
    """Of 9 rows and 17 columns no band is whole; a NaN beside the last column of a window is none of its terms."""
    order = ORDERS[(rows == 2) == (n == 64)]  # both for every height and every width
    x, weight = integers(2, 3, 18, 34, order=order), integers(40, 3, 3, 5, order=order)
    along = ((2, 2), (1, 2), (1, 1))
    x[:, :, :, 33] = torch.nan
    want = catalog.spec("conv2d").reference(x.double(), weight.double(), None, *along)
    c = conv2d.problem(layout(x), layout(weight), order, *along)
    block = _image_rows.block_of(c)._replace(rows=rows, n=n)
    got = _image_rows.plan(c, block, MULTIPROCESSORS).run(x, weight).double()
    assert want.isnan().any() and not want.isnan().all() and torch.equal(got.nan_to_num(-1e4), want.nan_to_num(-1e4))


@needs_nvrtc
@pytest.mark.parametrize(("op", "tile"), TMA_TILES, ids=str)
def test_every_tile_of_copies_by_taps_is_exact(op: str, tile: WgmmaTiling, monkeypatch: pytest.MonkeyPatch) -> None:
    """Filters or channels of more than a tile, taps that begin within one; steps of K beyond the ring of stages."""
    o, c = {
        "conv2d": (tile.n + 8, 72),
        "conv2d_backward_input": (72, tile.n + 8),
        "conv2d_backward_weight": (tile.m + 8, 72),
    }[op]
    x, weight, grad_out = (
        integers(*shape, order=torch.channels_last) for shape in ((1, c, 4, 5), (o, c, 3, 3), (1, o, 4, 5))
    )
    given = {
        "conv2d": (x, weight, None, STRIDE, PADDING, DILATION),
        "conv2d_backward_input": (grad_out, weight, STRIDE, PADDING, DILATION, (0, 0)),
        "conv2d_backward_weight": (grad_out, x, (3, 3), STRIDE, PADDING, DILATION),
    }[op]
    monkeypatch.setattr(_im2col, "tilings", lambda operator: (tile,))
    monkeypatch.setattr(
        OPERATORS[op], "best_plan", _im2col.best_plan.__wrapped__
    )  # past its cache, and that of choices
    monkeypatch.setattr(_im2col, "choose", _im2col.choose.__wrapped__)
    want = catalog.spec(op).reference(*(g.double() if isinstance(g, torch.Tensor) else g for g in given))
    assert torch.equal(OPERATORS[op].VARIANTS["implicit_gemm_tma"].fn(*given).double(), want)


@needs_nvrtc
@pytest.mark.parametrize("op", ["conv2d", "conv2d_backward_input"])
@pytest.mark.parametrize("tile", [*_shared_rows.TILES, WgmmaTiling(64, 128, 1.0, 4)], ids=str)
def test_every_tile_of_pixels_for_a_row_of_taps_is_exact(op: str, tile: WgmmaTiling) -> None:
    """Taps that are two columns apart, filters or channels of more than a tile, a last step that is not whole, and what is
    beside an image."""
    c, o = (88, tile.n + 8) if op == "conv2d" else (tile.n + 8, 88)
    images, filters = (2, c if op == "conv2d" else o, 9, 11), (o, c, 3, 5)
    image, weight = (integers(*shape, order=torch.channels_last) for shape in (images, filters))
    image[:, :, :, -1] = torch.nan
    along = (STRIDE, (1, 4), (1, 2))
    reference, doubles = catalog.spec(op).reference, (image.double(), weight.double())
    if op == "conv2d":
        p = conv2d.problem(layout(image), layout(weight), torch.channels_last, *along)
        want, h, w = reference(*doubles, None, *along), p.h, p.w
    else:
        p = conv2d_backward_input.problem(layout(image), layout(weight), torch.channels_last, *along, (0, 0))
        want, h, w = reference(*doubles, *along, (0, 0)), _im2col.backwards(p.h), _im2col.backwards(p.w)
    plan = _shared_rows.plan(
        p.operator, p.shape[1], layout(image), layout(weight), h, w, PLAIN.ending, tile, MULTIPROCESSORS // 44
    )
    got = _im2col.result(plan.run(image, weight, PLAIN), p).double()
    assert want.isnan().any() and not want.isnan().all() and torch.equal(got.nan_to_num(-1e4), want.nan_to_num(-1e4))


STRIDES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]] = {
    "images that end within a square": ((2, 72, 5, 6), (72, 40, 3, 3), ((2, 2), (1, 1), (1, 1), (1, 0))),
    "taps that skip phases": ((1, 64, 4, 3), (64, 136, 3, 2), ((4, 2), (1, 0), (2, 3), (0, 1))),
    "phases without a tap": ((1, 64, 5, 7), (64, 130, 1, 1), ((2, 3), (0, 0), (1, 1), (1, 2))),
    "padding of more than a window": ((2, 64, 7, 7), (64, 24, 2, 3), ((3, 1), (4, 3), (1, 1), (2, 0))),
}


@needs_nvrtc
@pytest.mark.parametrize("order", ORDERS, ids=["nchw", "channels_last"])
@pytest.mark.parametrize("case", STRIDES)
def test_gradients_of_images_by_strides_are_exact(case: str, order: torch.memory_format) -> None:
    images, filters, along = STRIDES[case]
    grad_out, weight = (integers(*s, order=order) for s in (images, filters))
    want = catalog.spec("conv2d_backward_input").reference(grad_out.double(), weight.double(), *along)
    got = conv2d_backward_input.VARIANTS["implicit_gemm_tma"].fn(grad_out, weight, *along)
    assert torch.equal(got.double(), want)


@needs_nvrtc
@pytest.mark.parametrize("tile", _strided.TILES, ids=str)
def test_every_tile_of_phases_is_exact(tile: WgmmaTiling) -> None:
    """On so few multiprocessors that each has works of several rounds."""
    grad_out, weight = (integers(*s, order=torch.channels_last) for s in ((3, 80, 9, 7), (80, tile.n + 8, 3, 3)))
    along = ((2, 2), PADDING, DILATION, (1, 0))
    want = catalog.spec("conv2d_backward_input").reference(grad_out.double(), weight.double(), *along)
    c = conv2d_backward_input.problem(layout(grad_out), layout(weight), torch.channels_last, *along)
    plan = _strided.plan(tile.n + 8, layout(grad_out), layout(weight), c.h, c.w, tile, 2)
    assert torch.equal(plan.run(grad_out, weight).permute(0, 3, 1, 2).double(), want)


@needs_nvrtc
def test_rows_behind_whole_rounds_are_a_launch_of_their_own() -> None:
    """With its own tile, and with its own pieces of K."""
    x, weight = integers(3, 64, 9, 12, order=torch.channels_last), integers(136, 64, 3, 3, order=torch.channels_last)
    want = catalog.spec("conv2d").reference(x.double(), weight.double(), None, STRIDE, PADDING, DILATION)
    c = conv2d.problem(layout(x), layout(weight), torch.channels_last, STRIDE, PADDING, DILATION)
    given = c.operator, 136, layout(x), layout(weight), c.h, c.w, PLAIN.ending
    for splits in (1, 2):
        rest = _im2col.plan(*given, WgmmaTiling(64, 128, 1.0, 4), splits, 2, 256)
        plan = _im2col.plan(*given, WgmmaTiling(128, 192, 1.0, 4), 1, 2, rest=rest)
        assert torch.equal(_im2col.result(plan.run(x, weight, PLAIN), c).double(), want)


def test_rounds_that_leave_little_behind_are_followed_by_smaller_tiles() -> None:
    x, weight = layout(meta(16, 512, 28, 28)), layout(meta(512, 512, 3, 3))
    c = conv2d.problem(x, weight, torch.channels_last, STRIDE, PADDING, DILATION)
    plan = _shared_rows.best_plan(c.operator, 512, x, weight, c.h, c.w, PLAIN.ending, MULTIPROCESSORS)
    assert isinstance(plan, _im2col.Im2colPlan) and plan.rest is not None
    assert (plan.product.M, plan.rest.product.M) == (66 * 128, 16 * 28 * 28 - 66 * 128)


@pytest.mark.parametrize(
    ("images", "channels", "side", "tile"),
    [(32, 512, 14, (192, 128)), (128, 512, 7, (192, 128)), (32, 128, 28, (192, 128)), (128, 256, 14, (128, 128))],
)
def test_the_tile_fills_a_round(images: int, channels: int, side: int, tile: tuple[int, int]) -> None:
    """The quickest of those timed: 132 tiles of 192 x 128 are one round, 264 of 128 x 128 are two whole ones."""
    x, weight = layout(meta(images, channels, side, side)), layout(meta(channels, channels, 3, 3))
    c = conv2d.problem(x, weight, torch.channels_last, STRIDE, PADDING, DILATION)
    found = _im2col.choose(c.operator, channels, x, weight, c.h, c.w, MULTIPROCESSORS)
    assert (found.tiling.m, found.tiling.n, found.head) == (*tile, 0)


def test_pixels_stay_where_channels_are_no_whole_lines() -> None:
    for channels, stay in ((96, True), (256, False)):
        x, weight = layout(meta(32, channels, 56, 56)), layout(meta(channels, channels, 3, 3))
        c = conv2d.problem(x, weight, torch.channels_last, STRIDE, PADDING, DILATION)
        plan = _shared_rows.best_plan(c.operator, channels, x, weight, c.h, c.w, PLAIN.ending, MULTIPROCESSORS)
        assert isinstance(plan, _shared_rows.SharedRowsPlan) == stay


@needs_nvrtc
@pytest.mark.parametrize("order", ORDERS, ids=["nchw", "channels_last"])
@pytest.mark.parametrize("op", list(OPERATORS))
def test_any_number_of_channels_goes_through_tma(op: str, order: torch.memory_format) -> None:
    x, weight, grad_out = (
        integers(2, 35, 6, 5, order=order),
        integers(37, 35, 2, 3, order=order),
        integers(2, 37, 7, 3, order=order),
    )
    along = ((1, 1), (1, 0), (1, 1))
    given = {
        "conv2d": (x, weight, None, *along),
        "conv2d_backward_input": (grad_out, weight, *along, (0, 0)),
        "conv2d_backward_weight": (grad_out, x, (2, 3), *along),
    }[op]
    want = catalog.spec(op).reference(*(g.double() if isinstance(g, torch.Tensor) else g for g in given))
    assert torch.equal(OPERATORS[op].VARIANTS["implicit_gemm_tma"].fn(*given).double(), want)


@needs_nvrtc
@pytest.mark.parametrize("order", ORDERS, ids=["nchw", "channels_last"])
@pytest.mark.parametrize("channels", [3, 4, 50, 24])
def test_copies_for_tma_have_zeros_around(channels: int, order: torch.memory_format) -> None:
    """Rows of more vectors than a block writes, read 1, 2, 4 or 8 channels at once."""
    x, whole = integers(2, channels, 2, 130, order=order), max(4, -(-channels // 16) * 16)
    left, columns = 3, 136
    got = copied(x, left, columns, whole)
    want = torch.zeros(2, 2, columns, whole, dtype=x.dtype)
    want[:, :, left : left + 130, :channels] = x.permute(0, 2, 3, 1)
    assert torch.equal(got, want)


def test_an_image_counts_once_in_the_rule_of_pieces() -> None:
    """Its gradient is then split as much as fills a GPU, since products, not bytes, take most of the time."""
    x, grad_out = layout(meta(32, 128, 56, 56)), layout(meta(32, 128, 28, 28))
    c = conv2d_backward_weight.problem(grad_out, x, torch.channels_last, (3, 3), (2, 2), PADDING, DILATION)
    plan = _im2col.best_plan(c.operator, 128, c.other, c.image, c.h, c.w, PLAIN.ending, MULTIPROCESSORS)
    assert (plan.launch._kernel.defines["BLOCK_N"], plan.parts) == (128, 14)


def test_pixels_within_sectors_are_copied_where_they_are_read_again() -> None:
    x = integers(2, 24, 3, 3, order=torch.channels_last)
    for taps, channels in (((3, 3), 64), ((1, 1), 24)):
        got = _im2col.ready(x, apart=_im2col.spacing(24, *taps))
        assert (got is x) == (channels == 24) and got.stride(3) == got.shape[1] == channels
        assert torch.equal(got[:, :24], x) and not got[:, 24:].any()


@needs_nvrtc
@pytest.mark.parametrize("channels", [8, 24])
def test_whole_vectors_of_rows_are_exact(channels: int) -> None:
    """Of the image, of the filters, of both, or of neither."""
    x, weight = (
        integers(1, channels, 6, 7, order=torch.channels_last),
        integers(20, channels, 3, 3, order=torch.channels_last),
    )
    want = catalog.spec("conv2d").reference(x.double(), weight.double(), None, STRIDE, PADDING, DILATION)
    for image in (x, x.contiguous()):
        for kernels in (weight, weight.contiguous()):
            c = conv2d.problem(layout(image), layout(kernels), torch.channels_last, STRIDE, PADDING, DILATION)
            plan = _image_rows.plan(c, _image_rows.block_of(c), MULTIPROCESSORS)
            assert plan.launch._kernel.defines["WHOLE_PIXELS"] == int(image is x)
            assert torch.equal(plan.run(image, kernels).double(), want)


FEW: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]] = {
    "two tiles along each axis, of which the last are not whole": ((1, 24, 17, 17), (24, 3, 3, 3), ((2, 2), (1, 1))),
    "two stages of channels": ((1, 72, 4, 5), (72, 2, 7, 7), ((2, 2), (3, 3))),
    "more columns than 32, runs of odd length": ((1, 16, 9, 3), (16, 5, 3, 4), ((3, 3), (0, 2))),
    "rows that no tap meets": ((2, 8, 3, 4), (8, 24, 1, 2), ((2, 1), (0, 0))),
    "channels that are no vectors": ((1, 11, 6, 5), (11, 1, 5, 1), ((1, 1), (2, 0))),
}


@needs_nvrtc
@pytest.mark.parametrize("order", ORDERS, ids=["nchw", "channels_last"])
@pytest.mark.parametrize("shape", FEW)
def test_phases_side_by_side_are_exact(shape: str, order: torch.memory_format) -> None:
    """Every block that fits, of one, two or four rows of squares for each warp and 16, 32 or 64 channels at once."""
    images, filters, (stride, padding) = FEW[shape]
    grad_out, weight = (integers(*s, order=order) for s in (images, filters))
    along = (stride, padding, (1, 1), (0, stride[1] - 1))
    want = catalog.spec("conv2d_backward_input").reference(grad_out.double(), weight.double(), *along)
    ready = _im2col.ready(grad_out)
    c = conv2d_backward_input.problem(layout(ready), layout(weight), order, *along)
    blocks = _phases.blocks(c.h.window, c.w.window, filters[1], filters[0])
    for block in blocks:
        with emulator.checks("full"):  # races among them
            got = _phases.plan(c, block, 1).run(ready, weight)  # at most three blocks, each with several tiles
        assert torch.equal(got.double(), want), block
    assert {b.depth for b in blocks} > {16} or filters[0] <= 16


def test_phases_of_the_first_layer_of_a_network_share_a_multiprocessor() -> None:
    """Each place near a square is read once: 16 for 7 x 7 and a stride of 2, whose phases meet 49."""
    first = Window(7, 2, 3)
    assert _phases.near(first) ** 2 == 16
    block, *_ = _phases.blocks(first, first, 3, 64)
    assert (block.columns, block.resident, block.height, block.depth) == (12, 2, 4, 32)


@pytest.mark.parametrize("last", [True, False])
def test_few_channels_are_left_to_phases(last: bool) -> None:
    """With any stride; what has 25 channels, more columns than there are sums for, or many filters for little, is not."""
    order = torch.channels_last if last else torch.contiguous_format

    def chosen(channels: int, taps: int, stride: int, deep: int = 64) -> str:
        grad_out, weight = (torch.empty(s).half() for s in ((1, deep, 9, 9), (deep, channels, taps, taps)))
        given = grad_out.contiguous(memory_format=order), weight, stride, taps // 2
        return dispatch.which("conv2d_backward_input", *given, backend="cuda")

    rung, few = "cuda/implicit_gemm_phases", [(c, 3, stride) for c in (1, 3, 16, 24) for stride in (1, 2)]
    assert {chosen(*call) for call in [*few, (3, 7, 2)]} == {rung}
    assert rung not in {chosen(25, 3, 1), chosen(7, 4, 4), chosen(16, 3, 1, deep=256)}


def test_bands_leave_few_positions_unused() -> None:
    for columns, rows in ((112, 1), (56, 2), (24, 4), (7, 4), (300, 2), (256, 1)):
        x, weight = meta(2, 3, 12, columns), meta(64, 3, 3, 3)
        c = conv2d.problem(layout(x), layout(weight), torch.channels_last, STRIDE, PADDING, DILATION)
        assert _image_rows.block_of(c).rows == rows


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float16, device="meta").to(memory_format=torch.channels_last)


def problems() -> list[Convolution]:
    """Of the layers of a ResNet, and of some that are as small or as odd as they come."""
    found = []
    for n, c, size, o, taps in ((32, 256, 56, 256, 3), (32, 3, 224, 64, 7), (1, 512, 7, 512, 3), (1, 1, 1, 1, 1)):
        x, weight, g = layout(meta(n, c, size, size)), layout(meta(o, c, taps, taps)), layout(meta(n, o, size, size))
        along = (STRIDE, (taps // 2, taps // 2), DILATION)
        found.append(conv2d.problem(x, weight, torch.channels_last, *along))
        found.append(conv2d_backward_input.problem(g, weight, torch.channels_last, *along, (0, 0)))
        found.append(conv2d_backward_weight.problem(g, x, torch.channels_last, (taps, taps), *along))
    return found


@pytest.mark.parametrize("c", problems(), ids=lambda c: f"{c.operator}-{c.image.shape}")
def test_pieces_cover_the_sum_and_stages_fit(c: Convolution) -> None:
    for tile in [t for _, t in MMA_TILES + WGMMA_TILES]:
        length, count = plans.pieces(c, tile, MULTIPROCESSORS)
        assert length % tile.k == 0
        assert (count - 1) * length < c.sizes[2] <= count * length
        assert tile.shared <= 227 * 1024
