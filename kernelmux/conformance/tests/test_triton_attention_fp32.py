"""Attention of fp32 by bf16x6 in Triton, both ways: forms that small calls do not take, vast numbers, and which cards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernelmux.registry.call import dispatch
from kernelmux.registry.ops.attention import reference
from kernelmux.registry.ops.attention_backward import reference as reference_backward
from kernelmux.registry.util import cards

triton = pytest.importorskip("kernelmux.backends.triton", exc_type=ImportError)
attention = pytest.importorskip("kernelmux.backends.triton.attention", exc_type=ImportError)
backward = pytest.importorskip("kernelmux.backends.triton.attention_backward", exc_type=ImportError)
plans = pytest.importorskip("kernelmux.backends.triton.attention_backward._bf16x6_plans", exc_type=ImportError)
problem = pytest.importorskip("kernelmux.backends.triton.attention._problem", exc_type=ImportError).problem
gradient = pytest.importorskip("kernelmux.backends.triton.attention_backward._problem", exc_type=ImportError).problem

T = torch.Tensor


def tensors(H: int, G: int, M: int, N: int, D: int) -> tuple[T, T, T, T]:
    """q, k, v and grad_out of one batch."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, g = (torch.randn(1, h, n, D, generator=generator) for h, n in ((H, M), (G, N), (G, N), (H, M)))
    return q, k, v, g


def near(got: T, want: T) -> None:
    """Within a few roundings of fp32 of the largest number."""
    torch.testing.assert_close(got.double(), want, atol=4e-6 * want.abs().max().item(), rtol=0)


@pytest.mark.parametrize("D", [72, 128])
@pytest.mark.parametrize("form", [(1, 32, 1), (1, 64, 1), (2, 64, 1), (2, 64, 2)], ids=str)
def test_each_form(form: tuple[int, int, int], D: int) -> None:
    """On one multiprocessor, so that programs go on to further queries."""
    if form == (2, 64, 2) and D == 128:
        pytest.skip("more than there is shared memory")
    q, k, v, _ = tensors(2, 1, 140, 200, D)
    call = (True, 0.1, 90, "ieee", None)
    config = dict(zip(("GROUPS", "BLOCK_N", "STAGES"), form, strict=True))
    with cards.standing_for(replace(cards.table()["h200"], processors=1)), triton.BACKEND.emulation():
        y, lse = attention.bf16x6(q, k, v, *call, lambda p: config)
    for got, want in zip((y, lse), reference(q.double(), k.double(), v.double(), *call), strict=True):
        near(got, want)


@pytest.mark.parametrize(("D", "tile", "stages", "shares"), [(64, 64, 2, 3), (96, 64, 1, 1), (144, 32, 2, 2)])
def test_walks_and_shares(D: int, tile: int, stages: int, shares: int) -> None:
    """Two heads share keys, whose tiles are cut into shares."""
    q, k, v, g = tensors(2, 1, 150, 130, D)
    call = (True, 0.1, None, "ieee", None)
    y, lse = reference(q.double(), k.double(), v.double(), *call)
    walk = {"TILE": tile, "STAGES": stages, "SHARES": 1}
    rules = {"keys": walk | {"SHARES": shares}, "queries": walk}
    grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    with cards.standing_for("h200"), triton.BACKEND.emulation():
        p = gradient(g, q, k, v, y.float(), *call)
        plans.bf16x6(p, grads, g, q, k, v, y.float(), lse.float(), lambda p: rules)
    wanted = reference_backward(g.double(), q.double(), k.double(), v.double(), y, lse, *call)
    for got, want in zip(grads, wanted, strict=True):
        near(got, want)


@pytest.mark.parametrize("scale", [1.0, 2.0**-228], ids=str)
def test_vast_and_faint_values(scale: float) -> None:
    """A single key, whose value may be beyond the largest number of bf16; all bits of faint ones are kept."""
    q, k, v, _ = tensors(1, 1, 20, 1, 64)
    v = v / v.abs().max() * torch.finfo(torch.float32).max * scale
    with cards.standing_for("h200"), triton.BACKEND.emulation():
        y, _ = attention.attention_bf16x6(q, k, v, False, 0.1, None, "ieee", None)
    near(y, v.double().expand_as(y))


@pytest.mark.parametrize(
    ("card", "D", "options", "forward", "back"),
    [
        ("h100", 128, {}, "bf16x6", "bf16x6"),
        ("h100", 192, {}, "bf16x6", "pointers"),
        ("a100", 128, {}, "online", "pointers"),
        ("h100", 64, {"precision": "tf32"}, "online", "pointers"),
        ("b200", 64, {}, "online", "pointers"),
    ],
)
def test_variants_of_fp32(card: str, D: int, options: dict[str, Any], forward: str, back: str) -> None:
    """Elsewhere than on Hopper, and for tf32, there is the plain way."""
    x, lse = torch.empty(1, 2, 700, D), torch.empty(1, 2, 700)
    with cards.standing_for(card):
        assert dispatch.which("attention", x, x, x, backend="triton", **options) == f"triton/{forward}"
        found = dispatch.which("attention_backward", *[x] * 5, lse, backend="triton", **options)
        assert found == f"triton/{back}"


@pytest.mark.parametrize(
    ("queries", "keys", "window", "forward", "back"),
    [
        (1, 60, None, "online", "bf16x6"),
        (1, 300, None, "bf16x6", "bf16x6"),
        (64, 4096, None, "bf16x6", "bf16x6"),
        (8, 300, 9, "online", "pointers"),
    ],
)
def test_calls_that_repay_planes(queries: int, keys: int, window: int | None, forward: str, back: str) -> None:
    """Few keys do not repay splitting them, nor a short window; named, the variant takes them. One query counts as 32."""
    q, k, lse = torch.empty(1, 32, queries, 128), torch.empty(1, 8, keys, 128), torch.empty(1, 32, queries)
    mask = {"causal": window is not None, "window": window}
    with cards.standing_for("h100"):
        assert dispatch.which("attention", q, k, k, **mask, backend="triton") == f"triton/{forward}"
        assert dispatch.which("attention_backward", q, q, k, k, q, lse, **mask, backend="triton") == f"triton/{back}"
        assert dispatch.which("attention", q, k, k, backend="triton/bf16x6") == "triton/bf16x6"


@pytest.mark.parametrize("D", [16, 64, 72, 96, 128, 136, 160])
def test_walks_fit_a_multiprocessor(D: int) -> None:
    """Planes of a program's own rows and of what walks by, and the weights."""
    x = torch.empty(1, 8, 1000, D, device="meta")
    with cards.standing_for("h200"):
        walk = backward.bf16x6_rule(gradient(x, x, x, x, x, True, 0.1, None, "ieee", None))["keys"]
        assert walk["TILE"] == (64 if D <= 96 else 32)  # what does not spill
        form = attention.bf16x6_rule(problem(x, x, x, True, 0.1, None, "ieee", None))
    width, room = sum(attention.pieces(D)), cards.table()["h200"].shared_per_block
    rows = 2 * plans.OWN + 2 * walk["TILE"] * walk["STAGES"]
    assert 6 * rows * width + 4 * plans.OWN * walk["TILE"] < room
    assert 6 * (64 * form["GROUPS"] + 2 * form["BLOCK_N"] * form["STAGES"]) * width < room
