"""Products and convolutions on cards other than an H200: the tiles have room, are exact, and the right rungs are chosen."""

from __future__ import annotations

from itertools import cycle

import pytest
import torch

from kernelmux import emulator
from kernelmux.backends.cuda import conv2d
from kernelmux.backends.cuda._families.epilogue import PLAIN
from kernelmux.backends.cuda._launch.layout import layout
from kernelmux.backends.cuda.conv2d import _plans as convolutions
from kernelmux.backends.cuda.matmul import _tensor_cores as products
from kernelmux.backends.cuda.matmul._choice import memory_of
from kernelmux.backends.cuda.matmul._tensor_cores import SMALL_TILINGS, TILINGS, MmaTiling
from kernelmux.emulator import nvrtc
from kernelmux.emulator.resources import resources
from kernelmux.registry import catalog
from kernelmux.registry.call import dispatch
from kernelmux.registry.errors import UnsupportedError
from kernelmux.registry.util import cards
from kernelmux.registry.util.cards import Card

pytestmark = pytest.mark.filterwarnings("ignore:.*on the emulator")
needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))
EVERY = [*cards.table().values(), *(cards.with_capability(c) for c in cards.CAPABILITIES)]
SIDES = (64, 128)
ORDERS = (torch.channels_last, torch.contiguous_format)
ALONG = ((1, 1), (1, 1), (1, 1))


def meta(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def integers(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Small ones, of which all sums are exact in fp32."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def formats(card: Card) -> list[torch.dtype]:
    return [dtype for dtype, name in products.FORMATS.items() if card.multiplies(name)]


@pytest.mark.parametrize("card", EVERY, ids=lambda card: card.key)
def test_every_tile_has_room(card: Card) -> None:
    """On a multiprocessor with the blocks that share it; large and small products have tiles of their own."""
    reserved = 0 if card.capability < (8, 0) else 1024  # bytes of each block, by the driver
    for dtype in formats(card):
        tilings = products.tilings(card, dtype)
        assert {16, 64, 128} <= {t.m for t in tilings}
        for t in tilings:
            assert t.shared(torch.float32) <= card.shared_per_block
            assert t.blocks * (t.shared(torch.float32) + reserved) <= card.shared_per_processor
            assert t.blocks * t.threads <= card.threads and t.blocks * t.threads * 64 <= card.registers
    for m in SIDES:
        for n in SIDES:
            tiles = convolutions.mma_tiles(m, n, card)
            assert tiles[-1][:2] == (64, 64)
            for tile in tiles:
                assert tile.shared <= card.shared_per_block
                assert tile.blocks * (tile.shared + reserved) <= card.shared_per_processor


def test_what_was_fitted_on_an_h200_stays_for_sm_90() -> None:
    for key in ("h100", "h200", "gh200"):
        card = cards.named(key)
        assert products.tilings(card, torch.bfloat16) == TILINGS and memory_of(card) == 4e6
        tiles = convolutions.mma_tiles(128, 128, card)
        assert [tuple(t) for t in tiles] == [(128, 128, 64, 128, 2, 3), (64, 64, 64, 128, 2, 3)]


def test_rates_are_those_of_the_card() -> None:
    """Products of a multiprocessor are quicker than its tensor cores on none, and not slower than half of that."""
    for card in cards.table().values():
        for dtype in formats(card):
            best = max(t.rate for t in products.tilings(card, dtype)) * 2e6
            most = card.rates[products.FORMATS[dtype]] / card.processors
            assert best <= most or card.capability == (9, 0)  # rates of bf16 stand for tf32 there
            assert best >= most / 2 or card.capability >= (9, 0)
    assert memory_of(cards.named("l4")) == pytest.approx(0.25e6)


@pytest.mark.parametrize(
    ("key", "m", "want"),
    [
        ("t4", 4096, (128, 128, 64, 2)),
        ("a100", 4096, (128, 256, 128, 3)),
        ("rtx3090", 4096, (128, 256, 64, 4)),
        ("rtx4090", 4096, (128, 256, 64, 4)),
        ("rtx5090", 4096, (128, 256, 64, 4)),
        ("b200", 4096, (128, 256, 128, 3)),
        ("t4", 16, (16, 128, 128, 2)),
    ],
)
def test_large_and_narrow_products_choose_the_tiles_for_them(key: str, m: int, want: tuple[int, ...]) -> None:
    a, b = (layout(meta(*shape, dtype=torch.float16)) for shape in ((m, 4096), (4096, 4096)))
    t, _ = products.choice(a, b, cards.named(key))
    assert (t.m, t.n, t.k_bytes, t.stages) == want


@needs_nvrtc
@pytest.mark.parametrize(
    ("tiling", "transposed"), list(zip(SMALL_TILINGS, cycle((False, True)), strict=False)), ids=str
)
def test_every_small_tiling_is_exact(tiling: MmaTiling, transposed: bool) -> None:
    """On the least card that takes it: more steps than stages, a second tile in part, all of it checked for races."""
    key = "t4" if tiling.stages == 2 else "rtx4090" if tiling.shared(torch.float32) <= 99 << 10 else "a100"
    m, n, k = tiling.m + 8, tiling.n + 8, tiling.k_bytes // 2 * tiling.stages + 24
    a, b = (integers(*((y, x) if transposed else (x, y))) for x, y in ((m, k), (k, n)))
    a, b = (a.t(), b.t()) if transposed else (a, b)
    with cards.standing_for(key) as card, emulator.checks("full"):
        assert tiling.shared(torch.float32) <= card.shared_per_block
        c = products.plan(layout(a), layout(b), tiling, 1).run(a, b, PLAIN)
    assert torch.equal(c, (a.double() @ b.double()).half())


@needs_nvrtc
@pytest.mark.parametrize(("key", "order"), list(zip(("t4", "a100", "rtx4090"), cycle(ORDERS), strict=False)), ids=str)
def test_every_tile_of_a_convolution_is_exact(key: str, order: torch.memory_format) -> None:
    x, weight = (integers(*s).contiguous(memory_format=order) for s in ((1, 8, 9, 15), (136, 8, 3, 3)))
    want = catalog.spec("conv2d").reference(x.double(), weight.double(), None, *ALONG)
    c = conv2d.problem(layout(x), layout(weight), order, *ALONG)
    with cards.standing_for(key) as card:
        for tile in convolutions.mma_tiles(128, 128, card):
            plan = convolutions.halves_plan(convolutions.IMPLICIT_GEMM, "conv2d_implicit_gemm", c, tile, 132)
            assert torch.equal(plan.run(x, weight).double(), want), tile


def chosen(key: str, op: str, *given: object) -> str:
    with cards.standing_for(key):
        return dispatch.which(op, *given, backend="cuda").removeprefix("cuda/")


def test_tensor_cores_multiply_halves_where_there_are_any_for_them() -> None:
    halves = {dtype: meta(128, 128, dtype=dtype).new_empty(128, 128, device="cpu") for dtype in products.FORMATS}
    image = {dtype: x.view(1, 64, 16, 16) for dtype, x in halves.items()}
    fp16, bf16, fp32 = halves
    taps = {dtype: torch.empty(64, 64, 3, 3, dtype=dtype) for dtype in halves}
    for key in ("a100", "rtx3090", "rtx4090", "rtx5090", "b200", "gb10"):
        for dtype in (fp16, bf16):
            assert chosen(key, "matmul", halves[dtype], halves[dtype]) == "tensor_cores"
            assert chosen(key, "linear", halves[dtype], halves[dtype]) == "tensor_cores"
            assert chosen(key, "conv2d", image[dtype], taps[dtype]) == "implicit_gemm"
        assert chosen(key, "matmul", halves[fp32], halves[fp32], "tf32") == "tensor_cores"
    for dtype, rung in ((fp16, "tensor_cores"), (bf16, "register_tiled"), (fp32, "register_tiled")):
        assert chosen("t4", "matmul", halves[dtype], halves[dtype], "tf32") == rung
    assert chosen("t4", "conv2d", image[fp16], taps[fp16]) == "implicit_gemm"
    assert chosen("t4", "conv2d", image[bf16], taps[bf16]) == "tiled"
    assert chosen("t4", "matvec", halves[fp16], halves[fp16][:8]) == "tensor_cores"
    assert chosen("t4", "matvec", halves[bf16], halves[bf16][:8]) == "rows"


def test_a_card_without_fp8_says_so() -> None:
    a, one = torch.zeros(32, 32).to(torch.float8_e4m3fn), torch.ones(())
    assert chosen("rtx4090", "fp8_matmul", a, a, one, one) == "tensor_cores"
    for key in ("t4", "a100", "rtx3090"):
        with pytest.raises(UnsupportedError, match=r"the GPU is sm_\d\d \(.*\), needs sm_89 or newer to multiply e4m3"):
            chosen(key, "fp8_matmul", a, a, one, one)


@needs_nvrtc
def test_a_t4_multiplies_bytes_and_vectors() -> None:
    a, b = integers(40, 70, dtype=torch.int8), integers(70, 33, dtype=torch.int8)
    weight, x = integers(40, 64), integers(6, 64)
    with cards.standing_for("t4"):
        c = dispatch.call(catalog.spec("int8_matmul"), (a, b, None, None), "cuda/tensor_cores")
        y = dispatch.call(catalog.spec("matvec"), (weight, x, None), "cuda/tensor_cores")
    assert torch.equal(c, (a.double() @ b.double()).int()) and torch.equal(y, (x.double() @ weight.double().t()).half())


@needs_nvrtc
@pytest.mark.parametrize("key", ["t4", "rtx3090", "rtx5090"])
def test_large_products_compile_and_have_room(key: str) -> None:
    spec = catalog.spec("matmul")
    given = (meta(1024, 2048, dtype=torch.half).new_empty(1024, 2048, device="cpu"),) * 2
    with cards.standing_for(key) as card, emulator.recorder(run=False) as log:
        dispatch.call(spec, (given[0], given[1].t(), "ieee"), "cuda")
    for launch in log:
        compiled = launch.compiled_by.compile(card.arch)
        need = resources(compiled.image, compiled.log)[launch.kernel]
        assert need.shared + launch.shared <= card.shared_per_block
        assert not need.spill_stores and not need.spill_loads
