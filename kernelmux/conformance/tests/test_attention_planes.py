"""Attention of fp32 by planes of bf16: tiles that few calls choose, heads that are one and the same, the guarded launch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelmux.backends.cuda import attention
from kernelmux.backends.cuda._families import planes
from kernelmux.backends.cuda.attention import _bf16x6
from kernelmux.backends.cuda.attention._call import call_of
from kernelmux.emulator import checks, nvrtc

T = torch.Tensor
SHARED = 227 * 1024  # bytes that a block may have on sm_90
needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))


def inputs(B: int, H: int, G: int, M: int, N: int, D: int) -> list[T]:
    generator = torch.Generator().manual_seed(M + N + D)
    return [torch.randn(B, h, n, D, generator=generator) for h, n in ((H, M), (G, N), (G, N))]


def exact(q: T, k: T, v: T, causal: bool, scale: float) -> tuple[T, T]:
    k, v = (x.double().repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = scale * q.double() @ k.mT
    if causal:
        M, N = s.shape[-2:]
        s = s.masked_fill(~torch.ones(M, N, dtype=torch.bool).tril(N - M), -torch.inf)
    return torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)


def close(found: tuple[T, T], wanted: tuple[T, T]) -> None:
    """As close as fp32 gets, and much closer than two planes would."""
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x.double(), y, atol=3e-6, rtol=0)


def run(q: T, k: T, v: T, causal: bool = False) -> tuple[T, T]:
    return attention.bf16x6(q, k, v, causal, 0.125, None, "ieee", None)


@needs_nvrtc
@pytest.mark.parametrize(
    ("rows", "keys", "units", "D"), [(128, 96, 3, 64), (128, 64, 8, 120), (64, 64, 3, 144), (128, 32, 6, 176)]
)
def test_tiles(rows: int, keys: int, units: int, D: int) -> None:
    """More works than multiprocessors of the emulated card would share, tiles that are part empty, a ring filled anew."""
    q, k, v = inputs(1, 2, 1, 230, 250, D)
    call = call_of(q, k, v, True, 0.125)
    with checks("full"):
        config = {"BLOCK_M": rows, "BLOCK_N": keys, "CONSUMERS": rows // 64, "UNITS": units}
        close(attention.bf16x6_plan(call, config).run(q, k, v), exact(q, k, v, True, 0.125))


@pytest.mark.parametrize("D", [1, 17, 64, 72, 96, 97, 128, 129, 192, 200, 256])
def test_tiles_fit(D: int) -> None:
    x = torch.empty(1, 4, 300, D, device="meta")
    config = _bf16x6.config(call_of(x, x, x, False, 0.1))
    lines = 3 * config["BLOCK_M"] + config["UNITS"] * config["BLOCK_N"]
    assert config["UNITS"] >= (6 if D <= 192 else 4) and lines * 2 * (-(-D // 64) * 64) + 1024 <= SHARED, config


@needs_nvrtc
@pytest.mark.parametrize("causal", [False, True])
def test_heads_and_batches_that_are_one_and_the_same(causal: bool) -> None:
    """Their planes are held once."""
    q, k, v = inputs(2, 4, 2, 33, 40, 64)
    k, v, q = k[:, :1].expand(2, 2, 40, 64), v[:1].expand(2, 2, 40, 64), q[:, 1:2].expand(2, 4, 33, 64)
    close(run(q, k, v, causal), exact(q, k, v, causal, 0.125))


@needs_nvrtc
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("value", [2.0**29, 1e-42, torch.inf, torch.nan])
def test_numbers_that_planes_cannot_hold(value: float, which: int) -> None:
    """Then all of it is computed the plain way."""
    q, k, v = given = inputs(1, 2, 1, 20, 30, 16)
    given[which][0, 0, 7, 3] = value
    for found, wanted in zip(run(q, k, v), attention.online(q, k, v, False, 0.125, None, "ieee", None), strict=True):
        assert torch.equal(found.nan_to_num(9.0), wanted.nan_to_num(9.0))


@needs_nvrtc
def test_the_guarded_launch_is_spared() -> None:
    q, k, v = inputs(1, 1, 1, 20, 30, 16)
    plan = attention.bf16x6_plan(call := call_of(q, k, v, False, 0.1), _bf16x6.config(call))
    flags, y, lse = (
        torch.zeros(3 * planes.BLOCKS * call.card.processors, dtype=torch.int32),
        torch.full_like(q, 7.0),
        torch.zeros(1, 1, 20),
    )
    plan.plain(flags, q, k, v, y, lse)
    assert bool((y == 7.0).all())
    flags[-1] = 1
    plan.plain(flags, q, k, v, y, lse)
    close((y, lse), exact(q, k, v, False, 0.1))


@pytest.mark.parametrize(
    ("shape", "scalars", "pays"),
    [
        ((1, 16, 16, 4096, 4096, 128), {"causal": True}, True),
        ((3, 2, 1, 448, 448, 144), {"causal": True}, True),
        ((1, 16, 16, 4096, 4096, 128), {"causal": True, "window": 2}, True),
        ((1, 8, 8, 32, 32, 64), {}, False),
        ((4, 8, 2, 1, 100, 64), {}, False),
        ((2, 4, 4, 4096, 4096, 64), {"causal": True, "window": 2}, False),
        ((1, 4, 4, 128, 0, 64), {}, False),
    ],
)
def test_calls_that_planes_are_for(shape: tuple[int, ...], scalars: dict[str, Any], pays: bool) -> None:
    call = SimpleNamespace(
        axes=dict(zip("BHGMND", shape, strict=True)),
        arguments={"causal": False, "window": None, "ahead": None, **scalars},
    )
    assert (_bf16x6.RepaysPlanesOfAttention().check(call) is None) == pays
