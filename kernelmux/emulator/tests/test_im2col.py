"""im2col copies of TMA: pixels of a convolution's input in 3 to 5 dimensions, against loops over output and filter."""

import itertools
from typing import Any

import numpy as np
import pytest

from kernelmux.emulator import EmulatorError, Im2colMap, TensorMap, checks
from kernelmux.emulator.running.launch import load
from kernelmux.emulator.tma.tensor_map import decode

HEAD = ".version 8.8\n.target sm_90a\n.address_size 64\n"


def kernel(rank: int, code: str, bytes_: int) -> Any:
    """Loads by `code` and copies the tile out; coordinates c0.. and offsets o0.. are parameters."""
    numbers = [f"c{i}" for i in range(rank)] + [f"o{i}" for i in range(rank - 2)]
    parameters = ", ".join(f".param .u32 {n}" for n in numbers)
    loads = "".join(f".reg .b32 %{n}; ld.param.u32 %{n}, [{n}];\n" for n in numbers)
    shorts = "".join(f".reg .b16 %h{i}; cvt.u16.u32 %h{i}, %o{i};\n" for i in range(rank - 2))
    at, by = ", ".join(f"%c{i}" for i in range(rank)), ", ".join(f"%h{i}" for i in range(rank - 2))
    return load(f"""{HEAD}.visible .entry k(.param .align 64 .b8 map[128], .param .u64 y, {parameters}) {{
    .shared .align 1024 .b8 tile[{bytes_}]; .shared .align 8 .b64 bar;
    .reg .b32 %a, %t, %i, %v; .reg .b64 %y, %at, %m; .reg .pred %p, %first;
    {loads}{shorts} ld.param.u64 %y, [y]; mov.b64 %m, map; cvta.param.u64 %m, %m; mov.u32 %a, bar; mov.u32 %t, %tid.x;
    setp.eq.u32 %first, %t, 0; @%first mbarrier.init.shared.b64 [%a], 1; bar.sync 0;
    @%first mbarrier.arrive.expect_tx.shared.b64 _, [%a], {bytes_};
    {code.replace("AT", at).replace("BY", by)}
    wait: mbarrier.try_wait.parity.shared.b64 %p, [%a], 0; @!%p bra wait;
    mov.u32 %i, %t;
    loop: shl.b32 %v, %i, 2; cvt.u64.u32 %at, %v; add.u64 %at, %at, %y; mov.u32 %a, tile; add.u32 %a, %a, %v;
    ld.shared.b32 %v, [%a]; st.global.b32 [%at], %v; add.u32 %i, %i, 32; setp.lt.u32 %p, %i, {bytes_ // 4}; @%p bra loop;
    ret; }}""").kernel("k")


LOAD = """.reg .b32 %tile; mov.u32 %tile, tile;
@%first cp.async.bulk.tensor.{rank}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes
[%tile], [%m, {{AT}}], [%a], {{BY}};"""


def loaded(map_: Im2colMap, at: tuple[int, ...], offsets: tuple[int, ...]) -> np.ndarray:
    """The tile [pixels, channels] of a load; coordinates and offsets outermost first."""
    assert map_.pixels is not None
    y = np.zeros((map_.pixels.count, map_.pixels.channels), map_.tensor.dtype)
    rank = map_.tensor.ndim
    with checks("full"):
        numbers = [np.uint32(v % 2**32) for v in (*at[::-1], *offsets[::-1])]
        kernel(rank, LOAD.format(rank=rank), y.nbytes).launch(1, 32, (map_, y, *numbers))
    return y


def convolved(x: np.ndarray, lower: Any, upper: Any, steps: Any, offsets: Any, channels: slice) -> np.ndarray:
    """For every base point of every image the pixel of one filter element: [images * points, channels]."""
    n, *sizes, c = x.shape
    ranges = [range(low, size + up, step) for low, size, up, step in zip(lower, sizes, upper, steps, strict=True)]
    rows = []
    for image in range(n):
        for point in itertools.product(*ranges):
            place = tuple(p + o for p, o in zip(point, offsets, strict=True))
            inside = all(0 <= p < size for p, size in zip(place, sizes, strict=True))
            rows.append(x[(image, *place)] if inside else np.zeros(c, x.dtype))
    return np.array(rows)[:, channels]


CASES = [
    # sizes, lower, upper, steps, filter offsets
    ((12,), (-1,), (-1,), (1,), (2,)),
    ((9,), (0,), (-2,), (2,), (1,)),
    ((6, 7), (-1, -1), (-1, -1), (1, 1), (0, 2)),
    ((6, 7), (0, 0), (-2, -2), (1, 1), (2, 2)),
    ((7, 8), (-1, -2), (-1, -2), (2, 3), (1, 1)),
    ((3, 4, 5), (-1, -1, -1), (-1, -1, -1), (1, 1, 1), (2, 0, 1)),
    ((4, 4, 4), (0, -1, 0), (-1, -1, -1), (2, 1, 2), (1, 1, 1)),
]


@pytest.mark.parametrize(("sizes", "lower", "upper", "steps", "offsets"), CASES)
def test_columns_of_a_convolution(sizes: Any, lower: Any, upper: Any, steps: Any, offsets: Any) -> None:
    x = np.arange(3 * np.prod(sizes) * 16, dtype=np.float32).reshape(3, *sizes, 16) + 1
    pixels, channels = 16, 8
    map_ = Im2colMap(x, lower, upper, channels, pixels, steps=steps)
    whole = convolved(x, lower, upper, steps, offsets, slice(4, 12))
    whole = np.concatenate([whole, np.zeros((pixels, channels), np.float32)])  # behind the last image
    points = list(
        itertools.product(
            range(3), *(range(a, s + b, c) for a, s, b, c in zip(lower, sizes, upper, steps, strict=True))
        )
    )
    for start in (0, 5, len(points) // 2, len(points) - 3):
        got = loaded(map_, (*points[start], 4), offsets)
        assert np.array_equal(got, whole[start : start + pixels])


def test_channels_outside_and_nan() -> None:
    x = np.ones((1, 5, 8), np.float32)
    got = loaded(Im2colMap(x, (-1,), (0,), 8, 8, fill="nan"), (0, -1, 4), (0,))
    inside = np.zeros((8, 8), bool)
    inside[1:6, :4] = True
    assert np.array_equal(np.isnan(got), ~inside) and (got[inside] == 1).all()


def test_swizzled_columns() -> None:
    x = np.arange(2 * 16 * 32, dtype=np.float32).reshape(2, 16, 32)
    got = loaded(Im2colMap(x, (0,), (0,), 32, 16, 128), (0, 0, 0), (0,)).reshape(-1).view(np.uint32)
    byte = np.arange(16 * 128)
    place = byte ^ ((byte // 128 & 7) * 16)
    assert np.array_equal(got.view(np.uint8)[place], x[0].reshape(-1).view(np.uint8))


STORE = """.reg .b32 %tile, %w; mov.u32 %tile, tile; mov.u32 %w, tile; shl.b32 %v, %t, 2; add.u32 %w, %w, %v;
add.u32 %v, %t, 100; cvt.rn.f32.u32 %f, %v; st.shared.f32 [%w], %f; st.shared.f32 [%w+128], %f;
fence.proxy.async.shared::cta; bar.sync 0;
@%first cp{reduce}.async.bulk.tensor.3d.global.shared::cta{add}.im2col_no_offs.bulk_group [%m, {{AT}}], [%tile];
@%first cp.async.bulk.commit_group; @%first cp.async.bulk.wait_group 0;
@%first mbarrier.complete_tx.shared.b64 [%a], 256;"""


@pytest.mark.parametrize("add", [False, True])
def test_stores_and_reductions(add: bool) -> None:
    x = np.full((2, 6, 8), 1000, np.float32)
    map_ = Im2colMap(x, (-1,), (1,), 8, 8)
    code = ".reg .f32 %f;" + STORE.format(reduce=".reduce" if add else "", add=".add" if add else "")
    numbers = [np.uint32(v % 2**32) for v in (0, 4, 0, 0)]
    with checks("full"):
        kernel(3, code, 256).launch(1, 32, (map_, np.zeros(64, np.float32), *numbers))
    expected = np.full((2, 6, 8), 1000, np.float32)
    tile = np.tile(np.arange(100, 132, dtype=np.float32), 2).reshape(8, 8)
    for row, (image, place) in enumerate([(0, 4), (0, 5), (0, 6), (1, -1), (1, 0), (1, 1), (1, 2), (1, 3)]):
        if 0 <= place < 6:
            expected[image, place] = tile[row] + (1000 if add else 0)
    assert np.array_equal(x, expected)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (((0,), (0,), 3, 8), "multiple of 16"),
        (((0,), (0,), 8, 1025), "pixels must be 1 to 1024"),
        (((0,), (0,), 512, 8), "channels must be 1 to 256"),
        (((40000,), (0,), 8, 8), "corners must be -32768 to 32767"),
        (((0, 0), (0, 0), 8, 8), "must have 1 numbers"),
        (((0,), (0,), 32, 8, 64), "more than the swizzle"),
    ],
)
def test_maps_that_the_driver_would_refuse(arguments: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Im2colMap(np.zeros((2, 6, 8), np.float32), *arguments)


def test_a_map_survives_its_encoding() -> None:
    map_ = Im2colMap(np.zeros((2, 4, 5, 6, 8), np.float16), (-1, -2, 3), (-4, 5, -6), 8, 700, steps=(1, 2, 8))
    content = map_.encode(64)
    tile = decode(content)
    assert len(content) == 128 and tile is not None and tile.pixels == map_.pixels
    assert tile.pixels is not None and tile.pixels.lower == (3, -2, -1) and tile.tile_bytes == 700 * 8 * 2


def test_the_wrong_kind_of_map() -> None:
    x = np.zeros((2, 6, 8), np.float32)
    numbers = [np.uint32(0)] * 4
    with pytest.raises(EmulatorError, match="im2col with a tensor map of tiles"):
        kernel(3, LOAD.format(rank=3), 256).launch(1, 32, (TensorMap(x, (1, 8, 8)), x, *numbers))
    tiles = LOAD.format(rank=3).replace(".im2col", ".tile").replace(", {BY}", "")
    with pytest.raises(EmulatorError, match="tiles with a tensor map of im2col"):
        kernel(3, tiles, 256).launch(1, 32, (Im2colMap(x, (0,), (0,), 8, 8), x, *numbers))
