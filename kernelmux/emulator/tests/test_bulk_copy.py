"""TMA: tiles of 1 to 5 dimensions, swizzles, what lies outside of the array, plain bytes; refused tensor maps."""

from typing import Any

import numpy as np
import pytest
import torch

from kernelmux.emulator import EmulatorError, TensorMap, checks, compile_ptx, load, nvrtc
from kernelmux.emulator.tests.tile_cuda import HEAD, tile_source
from kernelmux.emulator.tma.tensor_map import decode

needs_nvrtc = pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable()))


def move_tile(x: torch.Tensor, box: tuple[int, ...], at: tuple[int, ...], swizzle: int = 0, fill: str = "zero") -> Any:
    """The tile at `at` (outermost first) as it lies in shared memory, and a tensor with only that tile stored."""
    y = torch.zeros_like(x)
    count = int(np.prod(box))
    image = torch.zeros(count, dtype=x.dtype)
    size = count * x.element_size()
    corner = [np.int32(c) for c in (*at[::-1], 0, 0, 0, 0)[:5]]
    maps = TensorMap(x, box, swizzle, fill=fill), TensorMap(y, box, swizzle)
    kernel = load(compile_ptx(tile_source(x.dim()), arch="sm_90a")).kernel("tile")
    with checks("full"):
        kernel.launch(1, 32, (*maps, image, np.int32(size), *corner), names=("x", "y", "image"), shared=size)
    return image.reshape(box), y


def cut(x: torch.Tensor, box: tuple[int, ...], at: tuple[int, ...], fill: float = 0) -> torch.Tensor:
    """The same tile with plain indexing."""
    tile = torch.full(box, fill, dtype=x.dtype)
    for index in np.ndindex(*box):
        place = tuple(a + i for a, i in zip(at, index, strict=True))
        if all(0 <= p < n for p, n in zip(place, x.shape, strict=True)):
            tile[index] = x[place]
    return tile


SHAPES = {1: (100,), 2: (12, 40), 3: (3, 5, 16), 4: (2, 3, 4, 8), 5: (2, 3, 2, 3, 8)}
BOXES = {1: (32,), 2: (8, 16), 3: (2, 4, 8), 4: (2, 2, 4, 8), 5: (2, 2, 2, 2, 4)}


@needs_nvrtc
@pytest.mark.parametrize("where", [0, 1, -3])
@pytest.mark.parametrize("rank", range(1, 6))
def test_tiles_of_every_rank(rank: int, where: int) -> None:
    shape, box = SHAPES[rank], BOXES[rank]
    x = torch.arange(1, 1 + int(np.prod(shape)), dtype=torch.float32).reshape(shape)
    at = (where,) * rank
    image, stored = move_tile(x, box, at)
    assert torch.equal(image, cut(x, box, at))
    inside = tuple(slice(max(0, a), max(0, a + b)) for a, b in zip(at, box, strict=True))
    expected = torch.zeros_like(x)
    expected[inside] = x[inside]
    assert torch.equal(stored, expected)


@needs_nvrtc
@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float32], ids=str)
def test_swizzles(dtype: torch.dtype, swizzle: int) -> None:
    width = swizzle // torch.empty(0, dtype=dtype).element_size()
    x = torch.arange(16 * width).reshape(16, width).to(dtype)
    image, stored = move_tile(x, (16, width), (0, 0), swizzle)
    byte = np.arange(16 * swizzle)
    place = byte ^ ((byte // 128 & swizzle // 16 - 1) * 16)
    assert np.array_equal(image.view(torch.uint8).numpy().reshape(-1)[place], x.view(torch.uint8).numpy().reshape(-1))
    assert torch.equal(stored, x)


@needs_nvrtc
def test_lines_narrower_than_a_swizzle_are_its_width_apart() -> None:
    """As an H200 has them: 8 lines of 64 bytes take 8 times 128."""
    with pytest.raises(EmulatorError, match="out of bounds: bulk copy of 1024 bytes"):
        move_tile(torch.zeros(8, 32), (8, 16), (0, 0), swizzle=128)


@needs_nvrtc
def test_a_strided_array() -> None:
    x = torch.arange(16 * 64, dtype=torch.float32).reshape(16, 64)[:, 8:24]
    image, _ = move_tile(x, (8, 8), (2, 4))
    assert torch.equal(image, x[2:10, 4:12])


@needs_nvrtc
def test_outside_elements_can_be_nan() -> None:
    image, _ = move_tile(torch.ones(10, 16), (8, 16), (6, 0), fill="nan")
    assert (image[:4] == 1).all() and image[4:].isnan().all()


@needs_nvrtc
def test_a_tile_that_shared_memory_has_no_room_for() -> None:
    source = tile_source(2).replace('"r"(offset_of(memory)), "l"(&x)', '"r"(offset_of(memory) + 128), "l"(&x)')
    x = torch.zeros(8, 16)
    kernel = load(compile_ptx(source, arch="sm_90a")).kernel("tile")
    arguments = (TensorMap(x, (8, 16)), TensorMap(x, (8, 16)), x, np.int32(512), *[np.int32(0)] * 5)
    with pytest.raises(EmulatorError, match="512 bytes") as raised:
        kernel.launch(1, 32, arguments, shared=512)
    assert raised.value.kind == "out of bounds"


AGAIN = """  for (int i = threadIdx.x; i < bytes / 4; i += 32) image[i] = memory[31 - i];
  BARRIER
  if (threadIdx.x == 0) {
    expect(&bar, bytes);
    asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3}], [%2];"
                 :: "r"(offset_of(memory)), "l"(&x), "r"(offset_of(&bar)), "r"(c0) : "memory");
  }
  asm volatile("{.reg .pred p; more: mbarrier.try_wait.parity.shared.b64 p, [%0], 1; @!p bra more;}"
               :: "r"(offset_of(&bar)) : "memory");
"""


@needs_nvrtc
@pytest.mark.parametrize("barrier", ["__syncthreads();", ""])
def test_a_tile_must_not_be_loaded_again_while_others_read_it(barrier: str) -> None:
    loop = "  for (int i = threadIdx.x; i < bytes / 4; i += 32) image[i] = memory[i];\n"
    source = tile_source(1).replace(loop, AGAIN.replace("BARRIER", barrier))
    x = torch.arange(32, dtype=torch.int32)
    image, y = torch.zeros_like(x), torch.zeros_like(x)
    kernel = load(compile_ptx(source, arch="sm_90a")).kernel("tile")
    arguments = (TensorMap(x, (32,)), TensorMap(y, (32,)), image, np.int32(128), *[np.int32(0)] * 5)
    with checks("full"):
        if barrier:
            kernel.launch(1, 32, arguments, shared=128)
            assert torch.equal(image, x.flip(0))
        else:
            with pytest.raises(EmulatorError, match="since thread") as raised:
                kernel.launch(1, 32, arguments, shared=128)
            assert raised.value.kind == "race"


BYTES = (
    HEAD
    + """
extern "C" __global__ void bytes(const char* x, char* y, int size) {
  extern __shared__ __align__(128) char memory[];
  __shared__ unsigned long long bar;
  if (threadIdx.x == 0) {
    init(&bar);
    expect(&bar, size);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(offset_of(memory)), "l"(x), "r"(size), "r"(offset_of(&bar)) : "memory");
    wait(&bar);
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :: "l"(y), "r"(offset_of(memory)), "r"(size) : "memory");
    asm volatile("cp.async.bulk.commit_group;");
    memory[0] += CHANGE;
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}"""
)


def move_bytes(size: int, change: int = 0, room: int = 512) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = torch.arange(256, dtype=torch.uint8), torch.zeros(256, dtype=torch.uint8)
    kernel = load(compile_ptx(BYTES.replace("CHANGE", str(change)), arch="sm_90a")).kernel("bytes")
    with checks("full"):
        kernel.launch(1, 32, (x, y, np.int32(size)), names=("x", "y", "size"), shared=room)
    return x, y


@needs_nvrtc
def test_plain_bytes() -> None:
    x, y = move_bytes(208)
    assert torch.equal(y[:208], x[:208]) and not y[208:].any()


@needs_nvrtc
@pytest.mark.parametrize(
    ("size", "change", "room", "kind"),
    [
        (200, 0, 512, "misaligned"),
        (272, 0, 512, "out of bounds"),
        (208, 0, 128, "out of bounds"),
        (208, 1, 512, "asynchronous"),
    ],
    ids=["size no multiple of 16", "beyond the array", "beyond shared memory", "source overwritten before the wait"],
)
def test_bulk_copies_gone_wrong(size: int, change: int, room: int, kind: str) -> None:
    with pytest.raises(EmulatorError) as raised:
        move_bytes(size, change, room)
    assert raised.value.kind == kind, str(raised.value)


# --- tensor maps on the host ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "box", "swizzle", "text"),
    [
        ((4, 6), (4, 4), 0, "outer strides must be multiples of 16 bytes"),
        ((4, 8), (4, 2), 0, "innermost box is 8 bytes, expected a multiple of 16"),
        ((4, 64), (4, 32), 64, "innermost box is 128 bytes, more than the swizzle"),
        ((4, 8), (4, 257), 0, "box sizes must be 1 to 256"),
        ((4, 8), (8,), 0, "must have one rank"),
        ((4, 8), (4, 8), 16, "swizzle 16 is none of"),
    ],
)
def test_maps_that_the_driver_would_refuse(
    shape: tuple[int, ...], box: tuple[int, ...], swizzle: int, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        TensorMap(torch.zeros(shape), box, swizzle)


def test_a_map_survives_its_encoding() -> None:
    content = TensorMap(torch.zeros(3, 5, 16), (2, 4, 8), 32).encode(4096)
    tile = decode(content)
    assert len(content) == 128 and tile is not None
    assert (tile.address, tile.shape, tile.strides, tile.box) == (4096, (16, 5, 3), (4, 64, 320), (8, 4, 2))
    assert decode(b"\1" * 128) is None
