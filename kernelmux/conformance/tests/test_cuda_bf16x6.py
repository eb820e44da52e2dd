"""fp32 products by six products of bf16 planes, in CUDA: every tile, numbers that planes cannot hold, and which calls."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from kernelmux.backends.cuda import matmul
from kernelmux.backends.cuda._families import planes
from kernelmux.backends.cuda._families.epilogue import PLAIN
from kernelmux.backends.cuda._launch.layout import layout
from kernelmux.backends.cuda.matmul import _bf16x6
from kernelmux.backends.cuda.matmul._bf16x6 import TILINGS, PlanesTiling
from kernelmux.emulator import checks, nvrtc
from kernelmux.registry import catalog
from kernelmux.registry.choice import decide
from kernelmux.registry.util import cards

needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))
SMALLEST, LARGEST = 2.0**-134, 2.0**28  # that planes hold


@pytest.fixture(autouse=True)
def _hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cards.VARIABLE, "h200")


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def error(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest, in units of 2^-24 of the sum of |a b|."""
    return float(((c.double() - a.double() @ b.double()).abs() / (a.abs().double() @ b.abs().double())).max()) * 2**24


@needs_nvrtc
@pytest.mark.parametrize("shape", [(3, 64), (5, 130), (2, 3, 7)], ids=str)
def test_planes_add_up_to_the_number(shape: tuple[int, ...]) -> None:
    """Down to the smallest that they hold, in lines that begin anywhere; behind the last element is zero."""
    x = draw(*shape[:-1], shape[-1] + 3)[..., 3:]
    x[..., :4] = torch.tensor([SMALLEST, -1.0000001, LARGEST, 0.0])
    flags = planes.flags_for(x)
    y = planes.split(x, flags).double().unflatten(-1, (3, -1))
    assert torch.equal(y.sum(-2)[..., : shape[-1]] / planes.SCALE, x.double())
    assert not y[..., shape[-1] :].any() and not flags.any()


@needs_nvrtc
@pytest.mark.parametrize("number", [torch.inf, -torch.inf, torch.nan, LARGEST * 1.0000002, SMALLEST / 2, 1e-45])
def test_a_number_that_planes_cannot_hold_is_met(number: float) -> None:
    x, flags = draw(40, 70), torch.empty(0)
    for sign, place in product((1, -1), ((0, 0), (39, 69), (17, 8))):
        odd = x.clone()
        odd[place] = sign * number
        flags = planes.flags_for(odd)
        planes.split(odd, flags)
        assert flags.any(), (sign, place)


@needs_nvrtc
@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
def test_a_product_is_as_exact_as_in_fp32(tiling: PlanesTiling, turned: str) -> None:
    """Tiles that hang over, more steps than a ring has stages, K in pieces, by two blocks."""
    m, k, n = tiling.m + 3, 3 * 64 + 5, tiling.n + 2
    a = draw(k, m).t() if "a" in turned else draw(m, k)
    b = draw(n, k).t() if "b" in turned else draw(k, n)
    for splits in (1, 3):
        with checks("full"):
            c = _bf16x6.plan(layout(a), layout(b), tiling, splits, 2).run(a, b, PLAIN)
        assert error(c, a, b) < 3, splits


@needs_nvrtc
def test_batches() -> None:
    """With a of their own and an expanded one, of which a plane is made once, and with one b."""
    for a, b in (
        (draw(3, 20, 70), draw(3, 70, 30)),
        (draw(1, 20, 70).expand(3, 20, 70), draw(3, 30, 70).mT),
        (draw(2, 2, 20, 70), draw(70, 30)),
        (draw(2, 70, 3, 20).permute(0, 2, 3, 1), draw(2, 3, 70, 30)),
    ):
        c = matmul.VARIANTS["bf16x6"].fn(a, b, "ieee")
        assert c.shape == (*a.shape[:-1], 30) and error(c, a, b) < 3


@needs_nvrtc
@pytest.mark.parametrize("number", [torch.inf, torch.nan, 1e30, 1e-42])
def test_all_is_computed_anew_where_planes_cannot_hold_a_number(number: float) -> None:
    a, b = draw(70, 40), draw(40, 30)
    b[39, 29] = number
    c, plain = (matmul.VARIANTS[name].fn(a, b, "ieee") for name in ("bf16x6", "register_tiled"))
    assert torch.equal(c.nan_to_num(), plain.nan_to_num()) and torch.equal(c.isnan(), plain.isnan())


@pytest.mark.parametrize(
    ("sizes", "variant"),
    [
        ((4096, 4096, 4096), "bf16x6"),
        ((768, 768, 768), "bf16x6"),
        ((512, 512, 512), "register_tiled"),
        ((2802, 333, 128), "register_tiled"),
        ((16, 8192, 8192), "register_tiled"),
        ((20000, 256, 256), "bf16x6"),
    ],
)
def test_large_products_are_what_it_is_for(sizes: tuple[int, int, int], variant: str) -> None:
    """A call that names no variant; one that does gets it whatever the size."""
    m, k, n = sizes
    spec = catalog.spec("matmul")
    call = spec.hypothetical(spec.case(f"a={m}x{k} b={k}x{n}"), torch.float32, torch.device("cuda"), (9, 0))
    able = [v.variant for v in decide.verdicts(call, "cuda", elsewhere=True) if v.able]
    assert able[-1] == variant
    assert [v.able for v in decide.verdicts(call, "cuda", "bf16x6", elsewhere=True)] == [True]
