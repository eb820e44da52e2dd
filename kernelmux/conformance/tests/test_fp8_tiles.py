"""The tiles of products of 8-bit operands that only large calls choose, which ones calls do choose, and lines that begin
anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import kernelmux
from kernelmux.backends.cuda import fp8_matmul, int8_matmul
from kernelmux.backends.cuda._families.byte_products import ByteTile
from kernelmux.backends.cuda._launch.layout import Layout, layout
from kernelmux.backends.cuda.fp8_matmul import PROMOTED, SUMS, Fp8Scaling, tile, wgmma_launch
from kernelmux.backends.cuda.fp8_matmul._lines import on_lines, readable
from kernelmux.emulator import checks, nvrtc
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.util import cards

pytestmark = pytest.mark.filterwarnings("ignore")

SHARED = 227 * 1024  # bytes that a block may have on sm_90
LARGE = ((8192, 8192, 8192), (4096, 4096, 4096), (256, 4096, 7168), (3008, 5760, 2880))  # M, N, K
needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))


@pytest.fixture
def few() -> Iterator[None]:
    """A GPU of four multiprocessors: blocks walk on, and the last tiles of six are two works each."""
    with cards.standing_for(replace(cards.table()["h200"], processors=4)):
        yield


def factors(m: int, n: int, k: int, *, lines: bool) -> tuple[torch.Tensor, ...]:
    """a [m, k], b [n, k] and their scales: small integers and powers of two, of which all sums are exact in fp32."""
    rng = torch.Generator().manual_seed(m + n)
    a, b = (torch.randint(-4, 5, (rows, k), generator=rng).to(torch.float8_e4m3fn) for rows in (m, n))
    shapes = ((m, 1), (1, n)) if lines else ((), ())
    left, right = (2.0 ** torch.randint(-2, 3, shape, generator=rng) for shape in shapes)
    return a, b, left, right


def product(a: torch.Tensor, b: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return ((a.float() * left) @ (b.float().t() * right)).bfloat16()


@needs_nvrtc
@pytest.mark.parametrize(
    ("t", "promotes"),
    [*((t, True) for t in PROMOTED), *((t, False) for t in SUMS)],
    ids=lambda x: str(x).replace(" ", ""),
)
@pytest.mark.parametrize(("m", "more", "processors"), [(136, 16, 3), (136, 17, 9), (520, -8, 2)])
def test_sums_of_several_tiles_in_cuda(t: ByteTile, m: int, more: int, processors: int, *, promotes: bool) -> None:
    """More stages than the ring has, the last one in part, and a last tile that is halved. Threads write the results of two
    rounds of blocks, whether rows begin at 16 bytes or not, the copy engine those of three."""
    n, k = t.columns + more, 128 * t.stages(2, scaled=True) + 16
    a, b, left, right = factors(m, n, k, lines=True)
    of_a, of_b = (layout(x.view(torch.uint8))._replace(dtype=a.dtype) for x in (a, b.t()))
    launch = wgmma_launch(of_a, of_b, Fp8Scaling(1, 1, promotes, torch.bfloat16), t, processors)
    c = torch.empty(m, n, dtype=torch.bfloat16)
    assert (launch.c is not None) == (m == 520)
    with checks("full"):
        launch(a.view(torch.uint8), b.view(torch.uint8).t(), left, right, c)
    assert torch.equal(c, product(a, b, left, right))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_block_has_enough_shared_memory(size: int, *, scaled: bool) -> None:
    assert all(t.shared(size, scaled=scaled) <= SHARED and t.stages(size, scaled=scaled) >= 4 for t in SUMS)


@pytest.mark.parametrize(("shape", "columns"), [*zip(LARGE, (192, 128, 64, 192), strict=True)], ids=str)
def test_the_tile_takes_least_time_in_cuda(shape: tuple[int, int, int], columns: int) -> None:
    assert chosen(*shape).columns == columns


def chosen(m: int, n: int, k: int) -> ByteTile:
    """The tile of a product with one scale, all of whose sums are promoted."""
    a, b = Layout((m, k), (k, 1), torch.float8_e4m3fn, 0), Layout((k, n), (1, k), torch.float8_e4m3fn, 0)
    return tile(a, b, Fp8Scaling(0, 0, True, torch.bfloat16), 132)


def test_blocks_fetch_together_what_lies_in_odd_lines() -> None:
    """A line that begins in the middle of a sector costs L2 more."""
    assert chosen(2839, 5120, 4016)[:1] + chosen(2839, 5120, 4016)[3:] == (192, 2)
    assert chosen(1500, 2048, 2032).down == 2
    assert chosen(128, 2048, 2032).down == 1


def test_the_last_tiles_are_halves_where_they_fill_half_a_round() -> None:
    """23 x 24 tiles are four rounds of 132 and 24 more; 32 x 16 of them three and 116."""
    assert SUMS[-2].whole(3008, 5760, 132) == 528
    assert SUMS[-2].whole(4096, 4096, 132) == 512
    assert SUMS[-1].whole(3008, 5760, 132) == 264  # in pairs
    assert PROMOTED[-1].whole(3008, 5760, 132) == PROMOTED[-1].tiles(3008, 5760)


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("promotes", [False, True])
@pytest.mark.parametrize("out", [torch.bfloat16, torch.float32])
def test_sums_of_several_tiles_in_triton(index: int, few: None, out: torch.dtype, *, promotes: bool) -> None:
    """In fp32 pieces of results take twice the memory, beside rings that leave little."""
    pytest.importorskip("triton")
    from kernelmux.backends.triton._families import byte_specialised as triton
    from kernelmux.backends.triton.fp8_matmul import ELEMENTS, RESULTS

    t = (triton.PROMOTED if promotes else triton.SUMS)[index]
    m, n, k = 300, t.columns + t.more + 16, 128 * t.stages + 16
    a, b, left, right = factors(m, n, k, lines=True)
    formats, strides = (ELEMENTS[a.dtype], ELEMENTS[b.dtype]), (a.stride(), b.t().stride())
    launch = triton.specialised(-1, (m, n, k), strides, formats, RESULTS[out], (2, 2), promotes, t)
    c = torch.empty(m, n, dtype=out)
    with registered.backend("triton").emulation():
        launch(c, a, b.t(), left, right)
    assert torch.equal(c.bfloat16(), product(a, b, left, right))


@pytest.mark.parametrize(("shape", "columns"), [*zip(LARGE, (256, 256, 64, 128), strict=True)], ids=str)
def test_the_tile_takes_least_time_in_triton(shape: tuple[int, int, int], columns: int) -> None:
    pytest.importorskip("triton")
    from kernelmux.backends.triton._families.byte_specialised import tile_for

    assert tile_for(shape, (shape[2], shape[2]), 132, promotes=True).columns == columns


@needs_nvrtc
@pytest.mark.parametrize("length", [201, 202, 204, 208])
@pytest.mark.parametrize("offset", [0, 1, 16])
def test_lines_that_begin_anywhere_are_copied(length: int, offset: int) -> None:
    x = torch.arange(9 * length + offset).to(torch.uint8)[offset:].view(9, length)
    with checks("full"):
        y, z = on_lines(x, 1), on_lines(x.t(), 0)
    assert torch.equal(y, x) and torch.equal(z, x.t())
    assert readable(y, 1) and readable(z, 0)
    assert (y is x) == (length == 208 and offset != 1)


@needs_nvrtc
@pytest.mark.parametrize("backend", ["cuda", "triton"])
@pytest.mark.parametrize("rows", [40, 300])
def test_products_of_lines_that_begin_anywhere(
    backend: str, rows: int, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    from kernelmux.backends.triton import fp8_matmul as fp8
    from kernelmux.backends.triton import int8_matmul as int8

    for module in (fp8_matmul, int8_matmul, fp8, int8):
        monkeypatch.setattr(module, "repays", lambda a, b: True)
    a, b, left, right = factors(rows, 267, 201, lines=True)
    variant = f"{backend}/few_rows" if rows <= 128 else f"{backend}/{'wgmma' if backend == 'cuda' else 'persistent'}"
    for accumulation in ("full", "fast"):
        made = kernelmux.fp8_matmul(a, b.t(), left, right, accumulation=accumulation, backend=variant)
        assert torch.equal(made, product(a, b, left, right))
    integers = kernelmux.int8_matmul(a.float().to(torch.int8), b.float().to(torch.int8).t(), backend=variant)
    assert torch.equal(integers.float(), a.float() @ b.float().t())
