"""conv2d and its gradients on channels that Triton's boxes cannot read, or slowly, or cannot write."""

from __future__ import annotations

from itertools import cycle
from math import gcd
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from kernelmux import emulator
from kernelmux.backends.triton import conv2d, conv2d_backward_input, conv2d_backward_weight
from kernelmux.backends.triton.conv2d import _order, _rows_weight, _specialised, _specialised_weight
from kernelmux.backends.triton.conv2d._order import readable
from kernelmux.backends.triton.conv2d._problem import images
from kernelmux.backends.triton.conv2d._tiles import TILES, tile_config
from kernelmux.emulator.traces import Trace
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call.dispatch import explain
from kernelmux.registry.spec.sliding_windows import Window

pytestmark = pytest.mark.filterwarnings("ignore")
OPERATORS = {m.__name__.rpartition(".")[2]: m for m in (conv2d, conv2d_backward_input, conv2d_backward_weight)}
STRIDE = PADDING = DILATION = (1, 1)


def integers(*shape: int) -> torch.Tensor:
    return torch.randint(-1, 2, shape).half().to(memory_format=torch.channels_last)


def exact(op: str, rung: str, *given: Any) -> bool:
    """Whether a rung gives the reference's very numbers."""
    want = catalog.spec(op).reference(*(g.double() if isinstance(g, torch.Tensor) else g for g in given))
    with registered.backend("triton").emulation():
        got = OPERATORS[op].VARIANTS[rung].fn(*given)
    return torch.equal(got.double(), want)


def requests(trace: Trace, argument: str) -> set[int]:
    """The sizes, in bytes, of what threads read or write of an argument."""
    return {t.size for launch in trace.launches for t in launch.traffic if t.argument == argument}


@pytest.mark.parametrize("op", list(OPERATORS))
def test_channels_of_no_whole_sectors_are_exact(op: str) -> None:
    x, weight, grad_out = integers(2, 40, 8, 8), integers(48, 40, 3, 3), integers(2, 48, 8, 8)
    if op == "conv2d_backward_input":
        weight, grad_out = integers(50, 40, 3, 3), integers(2, 50, 8, 8)
    along = (STRIDE, PADDING, DILATION)
    given = {
        "conv2d": (x, weight, None, *along),
        "conv2d_backward_input": (grad_out, weight, *along, (0, 0)),
        "conv2d_backward_weight": (grad_out, x, (3, 3), *along),
    }[op]
    assert exact(op, "specialised", *given)


@pytest.mark.parametrize(
    ("filters", "count", "rows", "columns"), [(1, 2, 7, 9), (12, 70, 1, 2), (50, 2, 7, 9), (130, 1, 5, 6)]
)
def test_any_number_of_channels_is_written_exactly(filters: int, count: int, rows: int, columns: int) -> None:
    x, few = integers(count, 24, rows, columns), integers(count, 3, rows, columns)
    weight, bias = integers(filters, 24, 3, 3), integers(filters, 1, 1, 1).flatten()
    assert exact("conv2d", "specialised", x, weight, bias, STRIDE, PADDING, DILATION)
    assert exact("conv2d", "folded", few, weight[:, :3], None, STRIDE, PADDING, DILATION)
    assert exact(
        "conv2d_backward_input", "specialised", x, integers(24, filters, 3, 3), STRIDE, PADDING, DILATION, (0, 0)
    )


@pytest.mark.parametrize(("tile", "filters"), list(zip(TILES, cycle((33, 50, 100)))))
def test_every_tile_writes_lines(tile: tuple[int, int, float], filters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_specialised, "rule", lambda p: tile_config(*tile[:2], 32))
    _specialised.specialised.cache_clear()
    given = integers(3, 32, 6, 6), integers(filters, 32, 1, 1), None, STRIDE, (0, 0), DILATION
    with emulator.trace() as trace:
        assert exact("conv2d", "specialised", *given)
    assert requests(trace, "y") == {2 * gcd(filters, 8)}
    _specialised.specialised.cache_clear()  # of plans that another rule made


@pytest.mark.parametrize(("columns", "tile"), [(8, (128, 320)), (12, (128, 160)), (9, (256, 96)), (16, (64, 64))])
def test_contiguous_images_are_written_as_such(
    columns: int, tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many places at once as rows are a multiple of, by a launch that begins before that of the copies has ended."""
    monkeypatch.setattr(_specialised, "rule", lambda p: {**tile_config(*tile, 64), "BOX": (1, tile[0] // 16, 16)})
    _specialised.specialised.cache_clear()
    x = integers(2, 40, 5, columns).contiguous()
    weight, bias = integers(70, 40, 3, 3).contiguous(), integers(70, 1, 1, 1).flatten()
    with emulator.trace() as trace:
        assert exact("conv2d", "specialised", x, weight, bias, STRIDE, PADDING, DILATION)
    assert requests(trace, "y") == {2 * gcd(columns, 8)} and len(trace.launches) == 2
    turned = integers(40, 70, 3, 3).contiguous()
    assert exact("conv2d_backward_input", "specialised", x, turned, STRIDE, PADDING, DILATION, (0, 0))
    _specialised.specialised.cache_clear()


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=["nchw", "channels_last"])
@pytest.mark.parametrize(("channels", "rows", "columns"), [(40, 7, 9), (50, 6, 5), (64, 5, 8)])
def test_one_copy_has_all_that_strides_need(channels: int, rows: int, columns: int, order: torch.memory_format) -> None:
    x = integers(2, channels, rows, columns).contiguous(memory_format=order)
    weight = integers(24, channels, 3, 3).contiguous(memory_format=order)
    with emulator.trace() as trace:
        assert exact("conv2d", "specialised", x, weight, None, (2, 2), PADDING, DILATION)
    assert order == torch.channels_last or len(trace.launches) == 2


@pytest.mark.parametrize("tile", _rows_weight.TILES)
@pytest.mark.parametrize("shares", [1, 2])
def test_weights_from_rows_of_pixels(
    tile: tuple[int, int, float, int], shares: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of contiguous images, by one launch without copies, and one for the sums."""
    tiled = {**_rows_weight._tile(*tile[:2], tile[3]), "SHARES": shares}
    monkeypatch.setattr(_rows_weight, "rule", lambda p: tiled)
    _rows_weight.rows.cache_clear()
    grad_out, x = integers(3, 72, 8, 9).contiguous(), integers(3, 208, 8, 9).contiguous()
    with emulator.trace() as trace:
        assert exact("conv2d_backward_weight", "specialised", grad_out, x, (1, 1), STRIDE, (0, 0), DILATION)
    assert len(trace.launches) == shares
    _rows_weight.rows.cache_clear()


@pytest.mark.parametrize("tile", [(128, 320), (128, 192), (64, 256), (64, 64)])
@pytest.mark.parametrize(("channels", "stride"), [(64, 1), (72, 2), (320, 1)])
def test_tiles_of_weights_may_have_channels_beside_others(
    tile: tuple[int, int], channels: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which come in boxes of their own."""
    tiled = {**_specialised_weight._tile(*tile), "SHARES": 2}
    monkeypatch.setattr(_specialised_weight, "rule", lambda p: tiled)
    _specialised_weight.specialised.cache_clear()
    x, grad_out = integers(2, channels, 7, 5), integers(2, 72, 7 // stride, 5 // stride)
    x[:, 0, -1] = torch.nan
    given = grad_out, x, (3, 3), (stride, stride), (2 - stride, 2 - stride), DILATION
    want = catalog.spec("conv2d_backward_weight").reference(grad_out.double(), x.double(), *given[2:])
    with registered.backend("triton").emulation():
        got = OPERATORS["conv2d_backward_weight"].VARIANTS["specialised"].fn(*given).double()
    assert torch.equal(got.nan_to_num(-1e4), want.nan_to_num(-1e4))
    _specialised_weight.specialised.cache_clear()


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "maps"), [(5, 1, 2, 9), (5, 2, 2, 9), (3, 1, 1, 4), (3, 2, 1, 4), (5, 1, 0, 25)]
)
def test_elements_of_kernels_that_end_at_one_place_have_one_map(
    kernel: int, stride: int, padding: int, maps: int
) -> None:
    """Boxes that go on behind the last row and column find zeros in x too, and not its infinities."""
    x = integers(2, 64, 11, 13)
    x[:, 0, -1], x[:, 1, :, -1] = torch.inf, torch.nan
    places = [(n + 2 * padding - kernel) // stride + 1 for n in (11, 13)]
    grad_out = integers(2, 72, *places)
    assert len(_specialised_weight.ends((Window(kernel, stride, padding, 1),) * 2, (11, 13), tuple(places))) == maps
    given = grad_out, x, (kernel, kernel), (stride, stride), (padding, padding), DILATION
    want = catalog.spec("conv2d_backward_weight").reference(grad_out.double(), x.double(), *given[2:])
    with registered.backend("triton").emulation():
        got = OPERATORS["conv2d_backward_weight"].VARIANTS["specialised"].fn(*given).double()
    assert torch.equal(got.nan_to_num(-1e4), want.nan_to_num(-1e4))


@pytest.mark.parametrize(("shape", "biased"), [((2, 72, 5, 8), True), ((1, 40, 4, 4), False), ((3, 33, 7, 7), False)])
def test_single_elements_multiply_images_where_these_lie(shape: tuple[int, ...], biased: bool) -> None:
    x, weight = integers(*shape).contiguous(), integers(50, shape[1], 1, 1)
    bias = integers(50, 1, 1, 1).flatten() if biased else None
    assert exact("conv2d", "pointwise", x, weight, bias, STRIDE, (0, 0), DILATION)
    turned = integers(shape[1], 50, 1, 1)
    assert exact("conv2d_backward_input", "pointwise", x, turned, STRIDE, (0, 0), DILATION, (0, 0))


@pytest.mark.parametrize("filters", [192, 96, 200])
def test_a_third_of_the_channels_may_be_a_product_of_its_own(filters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In boxes of whole channels and of the last ones, forwards and backwards."""
    monkeypatch.setattr(_specialised, "rule", lambda p: tile_config(128, 96 if filters == 96 else 192, 64))
    _specialised.specialised.cache_clear()
    x, weight, bias = integers(2, 72, 9, 9), integers(filters, 72, 3, 3), integers(filters, 1, 1, 1).flatten()
    assert exact("conv2d", "specialised", x, weight, bias, STRIDE, PADDING, DILATION)
    turned = integers(72, filters, 3, 3)
    assert exact("conv2d_backward_input", "specialised", x, turned, STRIDE, PADDING, DILATION, (0, 0))
    _specialised.specialised.cache_clear()


STRIDES = {
    "images that end within a square": ((2, 72, 5, 6), (72, 40, 3, 3), (2, 2), (1, 1), (1, 1), (1, 0)),
    "taps that skip phases": ((1, 64, 4, 3), (64, 136, 3, 2), (4, 2), (1, 0), (2, 3), (0, 1)),
    "phases without a tap": ((1, 64, 5, 7), (64, 130, 1, 1), (2, 3), (0, 0), (1, 1), (1, 2)),
    "few channels, as squares": ((2, 64, 5, 9), (64, 3, 7, 7), (2, 2), (3, 3), (1, 1), (1, 1)),
    "squares that do not overlap": ((2, 20, 5, 3), (20, 5, 4, 4), (4, 4), (0, 0), (1, 1), (0, 3)),
    "squares with gaps": ((2, 64, 5, 3), (64, 5, 2, 2), (3, 3), (1, 0), (1, 1), (0, 2)),
}


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=["nchw", "channels_last"])
@pytest.mark.parametrize("case", list(STRIDES))
def test_gradients_of_images_by_strides_are_exact(case: str, order: torch.memory_format) -> None:
    images, filters, *along = STRIDES[case]
    grad_out, weight = integers(*images).contiguous(memory_format=order), integers(*filters)
    assert exact("conv2d_backward_input", "specialised", grad_out, weight, *along)


def test_a_fold_has_places_behind_the_last_column() -> None:
    """Which are zero in both factors: what is beside them in an image does not matter."""
    x, grad_out = integers(4, 40, 7, 9), integers(4, 72, 7, 9)
    x[:, :, :, -1] = torch.nan
    given = grad_out, x, (3, 3), STRIDE, PADDING, DILATION
    want = catalog.spec("conv2d_backward_weight").reference(grad_out.double(), x.double(), *given[2:])
    with registered.backend("triton").emulation():
        got = OPERATORS["conv2d_backward_weight"].VARIANTS["folded"].fn(*given).double()
    assert want.isnan().any() and torch.equal(got.nan_to_num(-1e4), want.nan_to_num(-1e4))


@pytest.mark.parametrize(
    ("channels", "again", "copied"),
    [(40, True, 64), (40, False, 40), (48, True, 48), (50, True, 64), (100, False, 128)],
)
def test_what_is_read_again_is_copied_into_whole_boxes(channels: int, again: bool, copied: int) -> None:
    x = integers(1, channels, 8, 8)
    with registered.backend("triton").emulation(), emulator.trace() as trace:
        got = readable(x, again=again)
    assert requests(trace, "x_ptr") == ({2 * gcd(channels, 8)} if copied > channels else set())
    assert got.shape[1] == copied and torch.equal(got[:, :channels], x) and not got[:, channels:].any()


def test_a_copy_of_any_size_fits_into_a_grid() -> None:
    """Only the first axis of a grid may be longer than 65,535."""
    x = torch.empty(2, 15_000_000, 8, 9, dtype=torch.float16, device="meta")
    with registered.backend("triton").emulation():
        launch = _order._copying(images(x), 8, 0, 9, 15_000_000)
    assert launch.grid[1:] == (1, 1) and launch.grid[0] == 2 * 8 * -(-9 * 15_000_000 // _order.NUMBERS)


@pytest.mark.parametrize(("channels", "columns"), [(64, 8), (72, 8), (72, 7), (168, 3), (256, 7)])
def test_images_are_turned_by_the_longest_vectors_there_are(channels: int, columns: int) -> None:
    """Also where a plane, or the channels of a place, are a multiple of 8 or 4, but of no 16."""
    x, pixels = integers(2, channels, 4, columns), 2 * gcd(4 * columns, 8)
    for turn, order, sizes in (
        (readable, torch.contiguous_format, {("load", pixels), ("store", 16)}),
        (_order.channels_first, torch.channels_last, {("load", 16), ("store", pixels)}),
    ):
        with registered.backend("triton").emulation(), emulator.trace() as trace:
            got = turn(x.contiguous(memory_format=order))
        assert torch.equal(got, x) and got.is_contiguous() == (order == torch.channels_last)
        assert {(t.operation, t.size) for t in trace.launches[0].traffic if t.space == "global"} == sizes


def spaced(op: str, x: torch.Tensor, stride: tuple[int, int]) -> tuple[Any, ...]:
    """A call of 24 kernels of one element, grad_out in the order of x."""
    places = [(n - 1) // s + 1 for n, s in zip(x.shape[2:], stride, strict=True)]
    grad_out = integers(len(x), 24, *places)
    if x.stride(1) > 1:
        grad_out = grad_out.contiguous()
    along = (stride, (0, 0), DILATION)
    backward = op == "conv2d_backward_weight"
    return (grad_out, x, (1, 1), *along) if backward else (x, integers(24, x.shape[1], 1, 1), None, *along)


@pytest.mark.parametrize(
    ("channels", "rows", "columns", "stride"),
    [(40, 7, 9, (2, 2)), (64, 16, 16, (2, 2)), (50, 6, 5, (2, 3)), (64, 1, 7, (2, 2)), (72, 8, 9, (1, 2))],
)
@pytest.mark.parametrize("rung", ["specialised", "folded"])
@pytest.mark.parametrize("op", ["conv2d", "conv2d_backward_weight"])
def test_of_copied_images_only_pixels_that_are_met_are_read(
    op: str, rung: str, channels: int, rows: int, columns: int, stride: tuple[int, int]
) -> None:
    x = integers(2, channels, rows, columns).contiguous()
    given = spaced(op, x, stride)
    with emulator.trace() as trace:
        assert exact(op, rung, *given)
    read = {t.requested for t in trace.launches[0].traffic if (t.space, t.operation) == ("global", "load")}
    assert x[:, :, :: stride[0], :: stride[1]].nbytes in read and x.nbytes not in read


def test_gradients_of_weights_read_contiguous_grad_out_where_it_lies() -> None:
    """Pixels that are met are copied as contiguous images then, if rows of them are whole vectors."""
    op, kernels, written = "conv2d_backward_weight", [], []
    for lengths in ((16, 14), (14, 10)):
        with emulator.trace() as trace:
            assert exact(op, "specialised", *spaced(op, integers(3, 72, *lengths).contiguous(), (2, 2)))
        kernels.append([launch.kernel for launch in trace.launches[:2]])
        written.append(requests(trace, "y_ptr"))
    assert kernels[0] == ["conv2d_spaced_kernel", "conv2d_backward_weight_rows_kernel"] and written[0] == {16}
    assert kernels[1] == ["conv2d_last_kernel", "conv2d_backward_weight_specialised_kernel"]


@pytest.mark.parametrize("op", ["conv2d", "conv2d_backward_weight"])
def test_channels_last_images_with_a_stride_are_read_where_they_lie(op: str) -> None:
    """Also those with gaps between columns, or with fewer rows than a stride, by single elements."""
    wide = integers(2, 96, 6, 7)
    for x in (wide, wide[:, :64], wide[:, :72], wide[:, :, :, :6], wide[:, :, :1], wide[:, :80, 1:, 1:]):
        with emulator.trace() as trace:
            assert exact(op, "specialised", *spaced(op, x, (2, 3)))
        assert all("last" not in launch.kernel and "fold" not in launch.kernel for launch in trace.launches)
        assert op != "conv2d" or trace.launches[0].kernel in ("conv2d_uneven_kernel", "conv2d_specialised_kernel")


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=["nchw", "channels_last"])
@pytest.mark.parametrize(
    ("channels", "padding", "lines"), [(72, 0, True), (168, 0, True), (72, 1, False), (64, 1, True)]
)
def test_single_elements_with_a_stride_need_no_phases(
    channels: int, padding: int, lines: bool, order: torch.memory_format
) -> None:
    """Which only channels that are a multiple of 16 have: the pixels that they meet are images of their own."""
    x, weight = (
        integers(*shape).contiguous(memory_format=order) for shape in ((2, channels, 8, 8), (24, channels, 1, 1))
    )
    given = x, weight, None, (2, 2), (padding, padding), DILATION
    chosen = explain("conv2d", *given, backend="triton").chosen
    assert chosen and (chosen.name == "triton/specialised") == lines
    with emulator.trace() as trace:
        assert not lines or exact("conv2d", "specialised", *given)
    assert not lines or padding or len(trace.launches) == 2 - (order == torch.channels_last)


@pytest.mark.parametrize("op", ["conv2d", "conv2d_backward_weight"])
def test_unaligned_images_with_a_stride_are_exact(op: str) -> None:
    whole = integers(2, 64, 5, 8)
    for order in (torch.contiguous_format, torch.channels_last):
        flat = torch.empty(whole.numel() + 1, dtype=whole.dtype)[1:]
        x = flat.as_strided(whole.shape, whole.contiguous(memory_format=order).stride()).copy_(whole)
        assert x.data_ptr() % 16
        assert exact(op, "specialised", *spaced(op, x, (2, 2)))
        assert exact(op, "specialised", *spaced(op, x[:, :, 1:, 2:], (2, 2)))
