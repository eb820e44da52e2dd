"""Attention in Triton: forms, tiles and splits that calls choose on an H200, and what those of large calls compute."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernelmux.registry.call import dispatch
from kernelmux.registry.util import cards

triton = pytest.importorskip("kernelmux.backends.triton", exc_type=ImportError)
attention = pytest.importorskip("kernelmux.backends.triton.attention", exc_type=ImportError)
forms = pytest.importorskip("kernelmux.backends.triton.attention._forms", exc_type=ImportError)
kernels = pytest.importorskip("kernelmux.backends.triton.attention._specialised", exc_type=ImportError)
problem = pytest.importorskip("kernelmux.backends.triton.attention._problem", exc_type=ImportError).problem


def h200(B: int, H: int, G: int, M: int, N: int, D: int, causal: bool = False, window: int | None = None) -> Any:
    """The problem of a call in bf16."""
    q, k = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((B, H, M, D), (B, G, N, D)))
    rows = kernels.joined(q, k, causal, window, None)
    return problem(rows, k, k, causal, 0.1, window, "ieee", None)


def rule(B: int, H: int, G: int, M: int, N: int) -> tuple[int, ...]:
    """Rows and keys of a tile, and splits."""
    q, k = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((B, H, M, 128), (B, G, N, 128)))
    config = attention.split_keys_rule(problem(q, k, k, False, 0.1, None, "ieee", None))
    return config["BLOCK_M"], config["BLOCK_N"], config["SPLITS"]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((1, 32, 8, 1, 4096), (16, 64, 16)),
        ((8, 32, 8, 1, 16384), (16, 32, 4)),
        ((8, 32, 8, 16, 4096), (64, 64, 2)),
        ((32, 32, 8, 16, 8192), (64, 64, 1)),
        ((16, 16, 2, 16, 16384), (64, 64, 4)),
        ((32, 32, 4, 16, 8192), (128, 64, 1)),
    ],
)
def test_tiles_and_splits(sizes: tuple[int, int, int, int, int], expected: tuple[int, ...]) -> None:
    assert rule(*sizes) == expected


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ((4, 32, 32, 4096, 4096, 128, True), (2, 128, 1)),
        ((4, 16, 4, 4096, 4096, 160, True), (2, 128, 1)),
        ((2, 16, 16, 2048, 2048, 192), (2, 64, 1)),
        ((8, 16, 8, 256, 256, 128, True), (1, 64, 2)),
        ((8, 8, 2, 300, 300, 176), (1, 64, 1)),
        ((63, 8, 8, 507, 507, 64, True), (1, 64, 3)),
        ((2, 32, 8, 4096, 4096, 64, True), (1, 128, 2)),
        ((6, 4, 1, 5376, 5376, 88, True, 18), (1, 32, 2)),
        ((4, 16, 4, 700, 700, 160, True, 600), (1, 64, 2)),
    ],
)
def test_forms(call: tuple[Any, ...], expected: tuple[int, ...]) -> None:
    config = attention.specialised_rule(h200(*call))
    assert (config["GROUPS"], config["BLOCK_N"], config["TOGETHER"]) == expected


@pytest.mark.parametrize(
    ("shape", "variant"),
    [
        ((1, 100, 640), "specialised"),
        ((1, 100, 2048), "descriptors"),
        ((9, 13, 543), "specialised"),
        ((4, 2, 155), "specialised"),
        ((4, 8, 600), "split_keys"),
        ((400, 2, 155), "split_keys"),
    ],
)
def test_variants_of_64_columns(shape: tuple[int, int, int], variant: str) -> None:
    """Long keys without a mask go to descriptors, few queries to split_keys unless there are few keys and heads too."""
    H, M, N = shape
    q, k = (torch.empty(1, H, n, 64, dtype=torch.bfloat16) for n in (M, N))
    with cards.standing_for("h200"):
        assert dispatch.which("attention", q, k, k, backend="triton") == f"triton/{variant}"


@pytest.mark.parametrize("D", [64, 104, 160, 200])
def test_programs_fit_a_multiprocessor(D: int) -> None:
    """Each form is for rows of some widths, and one of 64 keys for all."""
    card, width = cards.table()["h200"], sum(kernels.pieces(D))
    held = [(f, n) for f in (*forms.FORMS, forms.NARROW) if (n := forms.together(f, width, card.shared_per_block))]
    for form, programs in held:
        used = kernels.held_bytes(form.groups, form.keys, forms.STAGES, width)
        assert programs * (used + card.shared_per_processor - card.shared_per_block) <= card.shared_per_processor
    assert any(form.keys == 64 and form.groups == 1 for form, _ in held)


@pytest.mark.parametrize("D", [64, 96])
@pytest.mark.parametrize("form", forms.FORMS, ids=lambda form: f"{form.groups}x{form.keys}")
def test_each_form(form: Any, D: int) -> None:
    """On one multiprocessor, so that programs go on to further queries."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, h, n, D, generator=generator).bfloat16() for h, n in ((2, 140), (1, 300), (1, 300)))
    card = replace(cards.table()["h200"], processors=1)
    programs = forms.together(form, sum(kernels.pieces(D)), card.shared_per_block)
    config = {"GROUPS": form.groups, "BLOCK_N": form.keys, "STAGES": forms.STAGES, "TOGETHER": programs}
    with cards.standing_for(card), triton.BACKEND.emulation():
        y, lse = kernels.specialised(q, k, v, True, 0.1, None, "ieee", None, lambda p: dict(config))
    compare(q, k, v, y, lse)


def compare(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, y: torch.Tensor, lse: torch.Tensor) -> None:
    """With causal attention in fp64, scores times 0.1."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1).double() for x in (k, v))
    s = 0.1 * q.double() @ k.mT
    M, N = s.shape[2:]
    s = s.masked_fill(torch.arange(N) > torch.arange(M)[:, None] + N - M, -torch.inf)
    torch.testing.assert_close(y.double(), torch.softmax(s, -1) @ v, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse.double(), torch.logsumexp(s, -1), atol=1e-4, rtol=1e-4)


def test_a_tile_of_128_rows() -> None:
    """Four heads of keys fill a GPU of four multiprocessors."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(4, h, n, 64, generator=generator).bfloat16() for h, n in ((8, 13), (1, 150), (1, 150)))
    with cards.standing_for(replace(cards.table()["h200"], processors=4)), triton.BACKEND.emulation():
        p = problem(q, k, v, True, 0.1, None, "ieee", None)
        assert attention.split_keys_rule(p)["BLOCK_M"] == 128
        y, lse = attention.attention_split_keys(q, k, v, True, 0.1, None, "ieee", None)
    compare(q, k, v, y, lse)
