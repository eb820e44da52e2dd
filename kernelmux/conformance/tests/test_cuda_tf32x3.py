"""fp32 by three products of tf32 in CUDA: every tiling of attention's gradient, faint and infinite numbers, which cards."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from kernelmux.backends.cuda import attention_backward
from kernelmux.backends.cuda._launch.layout import layout
from kernelmux.backends.cuda._launch.occupancy import fits
from kernelmux.backends.cuda.attention_backward import _two_walks as walks
from kernelmux.backends.cuda.attention_backward._call import AttentionGradientCall, Config
from kernelmux.emulator import checks, nvrtc
from kernelmux.registry.call import dispatch
from kernelmux.registry.errors import UnsupportedError
from kernelmux.registry.ops import attention
from kernelmux.registry.ops import attention_backward as spec
from kernelmux.registry.spec.sliding_windows import Mask
from kernelmux.registry.util import cards
from kernelmux.registry.util.cards import Card

T = torch.Tensor
needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))
KEYS = ("OWN", "TILE", "STAGES", "SIDES", "BLOCKS")


@pytest.fixture(autouse=True)
def _hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cards.VARIABLE, "h200")


def draw(D: int, M: int = 40, N: int = 50, causal: bool = False) -> tuple[Any, ...]:
    """A call of two heads that share their keys, with what the forward call would have saved."""
    g = torch.Generator().manual_seed(D)
    grad_out, q, k, v = (torch.randn(1, H, n, D, generator=g) for H, n in ((2, M), (2, M), (1, N), (1, N)))
    y, lse = attention.reference(q.double(), k.double(), v.double(), causal, D**-0.5, None, "ieee", None)
    return grad_out, q, k, v, y.float(), lse.float(), causal, D**-0.5, None, "ieee", None


def gradients(*values: Any) -> tuple[T, ...]:
    found: tuple[T, ...] = attention_backward.VARIANTS["tf32x3"].fn(*values)
    return found


def expected(*values: Any) -> tuple[T, ...]:
    exact: list[Any] = [x.double() if isinstance(x, T) else x for x in values]
    return spec.reference(*exact)


def error(found: T, want: T) -> float:
    """The mean one, as a share of the mean number."""
    return float(((found.double() - want).square().mean() / want.square().mean()).sqrt())


def planned(D: int, card: Card) -> tuple[AttentionGradientCall, Config]:
    x = layout(torch.empty(1, 1, 8, D, device="meta"))
    call = AttentionGradientCall((x,) * 5, Mask(False, 0, 0), 0.1, card)
    return call, walks.tf32x3_config(call)


@needs_nvrtc
@pytest.mark.parametrize(
    ("D", "kind"),
    [
        (8, (64, 64, 1, 1, 2)),
        (64, (64, 64, 1, 1, 2)),
        (72, (64, 32, 2, 1, 2)),
        (128, (64, 32, 1, 1, 2)),
        (120, (64, 32, 1, 1, 1)),
        (144, (32, 32, 2, 2, 1)),
        (168, (32, 32, 1, 2, 1)),
        (136, (16, 32, 1, 2, 1)),
    ],
)
def test_every_tiling(D: int, kind: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    config = dict(zip(KEYS, kind, strict=True)) | {"VECTOR": 4}
    monkeypatch.setattr(walks, "tf32x3_config", lambda call: config)
    values = draw(D, causal=D != 64)
    with checks("full"):
        found = attention_backward._variant(walks.tf32x3)(*values)
    assert all(error(x, want) < 2e-6 for x, want in zip(found, expected(*values), strict=True))


@needs_nvrtc
def test_rows_that_begin_anywhere() -> None:
    grad_out, q, *more = draw(24)
    wide = torch.zeros(1, 2, 40, 27)
    wide[..., 3:] = q
    values = grad_out, wide[..., 3:], *more
    assert all(error(x, want) < 2e-6 for x, want in zip(gradients(*values), expected(*values), strict=True))


@needs_nvrtc
@pytest.mark.parametrize("power", [-110, 100])
def test_faint_and_vast_gradients_lose_nothing(power: int) -> None:
    """lo of 2^-110 is below the smallest normal number of fp32."""
    grad_out, *more = draw(16)
    values = grad_out * 2.0**power, *more
    found, want = gradients(*values), expected(*values)
    assert error(found[2] * 2.0**-power, want[2] * 2.0**-power) < 2e-6


@needs_nvrtc
@pytest.mark.parametrize("number", [torch.inf, -torch.inf, torch.nan])
def test_an_infinite_number_stays_one(number: float) -> None:
    """Of its lo, which is NaN, nothing is left in the gradients."""
    values = draw(16)
    values[0][0, 0, 3, 5] = number
    for found, want in zip(gradients(*values), expected(*values), strict=True):
        assert torch.equal(found.isnan(), want.isnan())
        assert torch.equal(found[want.isinf()], want[want.isinf()].float())


@pytest.mark.parametrize(
    ("name", "widest"), [("a100", 256), ("rtx3090", 240), ("8.7", 240), ("rtx4090", 240), ("h100", 256), ("h200", 256)]
)
def test_tilings_fit_where_a_call_is_taken(name: str, widest: int) -> None:
    with cards.standing_for(name) as card:
        for D in range(8, widest + 1, 8):
            call, config = planned(D, card)
            threads = 2 * config["SIDES"] * config["OWN"]
            assert fits(card, walks.tf32x3_bytes(call, config), threads, config["BLOCKS"]), (D, config)
        x = torch.empty(1, 1, 8, 248)
        with nullcontext() if widest == 256 else pytest.raises(UnsupportedError, match="needs D <= 240, or sm_80"):
            dispatch.which("attention_backward", x, x, x, x, x, x.new_empty(1, 1, 8), backend="cuda/tf32x3")


@needs_nvrtc
@pytest.mark.parametrize("D", [64, 120, 128, 176])
def test_the_tilings_of_a_consumer_card(D: int) -> None:
    values = draw(D)
    with cards.standing_for("rtx4090"), checks("full"):
        found = gradients(*values)
    assert all(error(x, want) < 2e-6 for x, want in zip(found, expected(*values), strict=True))


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("t4", "simple"),
        ("a100", "tf32x3"),
        ("rtx3090", "simple"),
        ("rtx4090", "simple"),
        ("h100", "tf32x3"),
        ("b200", "simple"),
    ],
)
def test_cards_whose_tensor_cores_are_worth_it(name: str, chosen: str) -> None:
    x = torch.empty(1, 1, 64, 64)
    with cards.standing_for(name):
        found = dispatch.which("attention_backward", x, x, x, x, x, x.new_empty(1, 1, 64), backend="cuda")
    assert found == f"cuda/{chosen}"
