"""Attention on CUDA on cards other than an H200: which rung runs, in how many blocks, with tiles that fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelmux import emulator
from kernelmux.backends.cuda import attention, attention_backward, paged_attention
from kernelmux.backends.cuda._launch.layout import layout
from kernelmux.backends.cuda.attention import _split_keys as split
from kernelmux.backends.cuda.attention._call import AttentionCall, call_of, l2_share
from kernelmux.backends.cuda.attention_backward import _two_walks as gradient
from kernelmux.backends.cuda.attention_backward._call import AttentionGradientCall
from kernelmux.conformance.inputs import trials
from kernelmux.emulator import checks, nvrtc
from kernelmux.registry import catalog
from kernelmux.registry.call import dispatch
from kernelmux.registry.errors import UnsupportedError
from kernelmux.registry.spec.sliding_windows import Mask
from kernelmux.registry.util import cards
from kernelmux.registry.util.cards import Card

CARDS = ("t4", "a100", "rtx3090", "rtx4090", "rtx5090", "gb10", "b200", "b300")
needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))


def untouched(op: str, text: str, dtype: torch.dtype) -> tuple[Any, ...]:
    spec = catalog.spec(op)
    case = spec.case(text)
    return trials.values(spec, case, spec.untouched(case, dtype), torch.device("cpu"))


def decoding(N: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """One query of 32 heads, which share the keys of 8."""
    return untouched("attention", f"q=1x32x1x128 k=1x8x{N}x128 v=1x8x{N}x128", dtype)


def rung(op: str, values: tuple[Any, ...]) -> str:
    return dispatch.which(op, *values, backend="cuda")


def hypothetical(rows: int, D: int, B: int = 1, causal: bool = False) -> AttentionCall:
    q, k = (torch.empty(shape, dtype=torch.float16, device="meta") for shape in ((B, rows, 1, D), (B, 1, 4096, D)))
    return call_of(q, k, k, causal, 0.1)


@pytest.mark.parametrize("name", CARDS)
def test_decoding_splits_keys(name: str) -> None:
    with cards.standing_for(name) as card:
        dtype = torch.bfloat16 if card.multiplies("bf16") else torch.float16
        assert rung("attention", decoding(65536, dtype)) == "cuda/split_keys"
        pages = untouched(
            "paged_attention",
            "q=1x32x128 k_pages=4096x8x16x128 v_pages=4096x8x16x128 page_table=1x4096 lengths=1",
            dtype,
        )
        assert rung("paged_attention", pages) == "cuda/split_keys"
        many = untouched("attention", "q=1x2x512x128 k=1x2x512x128 v=1x2x512x128", dtype)
        assert rung("attention", many) == "cuda/tensor_cores"


@needs_nvrtc
@pytest.mark.parametrize(("name", "pieces", "follows"), [("rtx4090", 16, False), ("rtx5090", 21, True)])
def test_blocks_that_share_the_keys(name: str, pieces: int, follows: bool) -> None:
    """As many as the card has multiprocessors, 8 heads of keys in so many pieces; the join overlaps from sm_90 on."""
    with cards.standing_for(name) as card:
        q, k, v = decoding(65536, torch.bfloat16)[:3]
        with emulator.recorder(run=False) as launches:
            attention.split_keys(q, k, v, False, 0.1, None, "fp32", None)
        assert [(x.kernel, x.grid[0]) for x in launches] == [
            ("attention_split_keys", 8 * pieces),
            ("attention_merge", 32),
        ]
        assert 0.9 * card.processors < 8 * pieces <= card.processors
        assert launches[0].shared <= card.shared_per_block
        plan = split._plan(call_of(q, k, v, False, 0.1), 8)
        assert plan.merge is not None and plan.merge._follows is follows


def test_a_t4_takes_bf16_on_other_pipes() -> None:
    """Its tensor cores do not multiply it: attention has a rung without them, paged attention has none."""
    with cards.standing_for("t4"):
        assert rung("attention", decoding(64, torch.bfloat16)) == "cuda/online"
        assert rung("attention", decoding(64, torch.float16)) == "cuda/split_keys"
        text = "q=2x2x64 k_pages=3x1x16x64 v_pages=3x1x16x64 page_table=2x2 lengths=2"
        with pytest.raises(UnsupportedError, match="needs sm_80 or newer to multiply bf16"):
            rung("paged_attention", untouched("paged_attention", text, torch.bfloat16))


@pytest.mark.parametrize("name", (*CARDS, "h100", "h200"))
def test_tiles_fit(name: str) -> None:
    """Blocks, as many at a time as they are compiled for, in the shared memory of a multiprocessor."""
    with cards.standing_for(name) as card:
        reserved = card.shared_per_processor - card.shared_per_block
        for D in range(8, 257, 8):
            for rows in (1, 17, 33, 100):
                for B in (1, 64):
                    call = hypothetical(rows, D, B)
                    of_split, of_pages = split.config(call), paged_attention.paged_config(call)
                    room = card.shared_per_processor // of_split["BLOCKS"] - reserved
                    assert split._tile_bytes(call, of_split) <= room, (D, rows, of_split)
                    room = card.shared_per_processor // of_pages["BLOCKS"] - reserved
                    assert paged_attention._shared(call, of_pages) <= room, (D, rows, of_pages)
            for causal in (False, True):
                call = hypothetical(1, D, causal=causal)
                assert call.tile_bytes(attention.tensor_cores_config(call)) <= card.shared_per_block
            call_of_gradient = of_gradient(card, D)
            config = gradient.tensor_cores_config(call_of_gradient)
            assert gradient.tensor_cores_bytes(call_of_gradient, config) <= card.shared_per_block
            assert config["STAGES"] == 1 or card.capability >= (8, 0)
            assert config["STAGES"] == 2 or card.capability < (8, 0) or not 64 < D <= 240


def of_gradient(card: Card, D: int) -> AttentionGradientCall:
    x = layout(torch.empty(1, 1, 8, D, dtype=torch.float16, device="meta"))
    return AttentionGradientCall((x,) * 5, Mask(False, 0, 0), 0.1, card)


@pytest.mark.parametrize(
    ("D", "causal", "chosen"),
    [(256, True, "wgmma"), (136, False, "wgmma"), (96, True, "fused"), (96, False, "fused"), (128, False, "fused")],
)
def test_walks_of_the_gradient_on_a_hopper(D: int, causal: bool, chosen: str) -> None:
    """One for long calls of up to 128 columns and for few keys, else two."""
    x = f"1x1x64x{D}"
    text = f"grad_out={x} q={x} k={x} v={x} y={x} lse=1x1x64" + " causal=True" * causal
    with cards.standing_for("h100"):
        assert rung("attention_backward", untouched("attention_backward", text, torch.bfloat16)) == f"cuda/{chosen}"


def owned(card: Card, D: int) -> tuple[int, int]:
    config = gradient.tensor_cores_config(of_gradient(card, D))
    return config["OWN"], config["TILE"]


def test_tiles_of_a_hopper_are_what_was_measured() -> None:
    """Warps by rows and keys, keys, stages, blocks: those of the records."""
    for name in ("h100", "h200"):
        with cards.standing_for(name) as card:
            found = [tuple(split.config(hypothetical(rows, D)).values()) for D, rows in ((64, 4), (128, 17), (192, 64))]
            assert found == [(1, 4, 128, 3, 2), (2, 2, 64, 3, 2), (4, 1, 64, 4, 1)]
            pages = [tuple(paged_attention.paged_config(hypothetical(4, D, 64)).values()) for D in (128, 256)]
            assert pages == [(1, 4, 64, 2, 3), (1, 4, 64, 3, 1)]
            assert [owned(card, D) for D in (64, 128, 256)] == [(64, 64), (64, 64), (32, 32)]
            assert l2_share(card) == 16 << 20


@needs_nvrtc
@pytest.mark.parametrize(
    ("name", "heads", "D"), [("t4", 4, 256), ("t4", 20, 192), ("rtx4090", 40, 256), ("a100", 4, 192)]
)
def test_narrow_tiles(name: str, heads: int, D: int) -> None:
    """The tiles of wide heads, which differ by card: keys and pages of several tiles, the last one incomplete."""
    generator = torch.Generator().manual_seed(D)
    S, L = 8, 19
    q = torch.randn(1, heads, D, generator=generator).half()
    k, v = (torch.randn(L, 1, S, D, generator=generator).half() for _ in range(2))
    table, lengths = (
        torch.randperm(L, generator=generator).view(1, L).int(),
        torch.tensor([S * L - 3], dtype=torch.int32),
    )
    want = catalog.spec("paged_attention").reference(*(x.double() for x in (q, k, v)), table, lengths, 0.1)
    keys, values = (x[table[0].long()].transpose(0, 1).reshape(1, 1, S * L, D)[:, :, : S * L - 3] for x in (k, v))
    with cards.standing_for(name), checks("full"):
        y = paged_attention.paged_attention(q, k, v, table, lengths, 0.1)
        call = call_of(q[:, :, None], keys, values, False, 0.1)
        chosen = split.config(call)
        z, _ = split.plan(call, chosen, 8, 2).run(q[:, :, None], keys, values)
    torch.testing.assert_close(y.double(), want, atol=4e-3, rtol=4e-3)
    torch.testing.assert_close(z[:, :, 0].double(), want, atol=4e-3, rtol=4e-3)


@needs_nvrtc
@pytest.mark.parametrize(("name", "D"), [("t4", 128), ("t4", 256), ("rtx4090", 128)])
def test_attention_and_its_gradient_on_tensor_cores(name: str, D: int) -> None:
    generator = torch.Generator().manual_seed(D)
    q, k, v, grad = (torch.randn(1, 1, n, D, generator=generator).half() for n in (70, 90, 90, 70))
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    s = 0.1 * exact[0] @ exact[1].mT
    s = s.masked_fill(torch.ones(70, 90, dtype=torch.bool).triu(21), -torch.inf)
    want = torch.softmax(s, -1) @ exact[2]
    torch.autograd.backward(want, grad.double())
    with cards.standing_for(name), checks("full"):
        y, lse = attention.tensor_cores(q, k, v, True, 0.1, None, "fp32", None)
        run = attention_backward.VARIANTS["tensor_cores"].fn
        grads = run(grad, q, k, v, y, lse, True, 0.1, None, "fp32", None)
    torch.testing.assert_close(y.double(), want.detach(), atol=4e-3, rtol=4e-3)
    for found, x in zip(grads, exact, strict=True):
        assert x.grad is not None
        torch.testing.assert_close(found.double(), x.grad, atol=2e-2, rtol=2e-2)


def test_windows_take_a_narrower_tile_where_a_wider_one_spills() -> None:
    found = {}
    for name in ("h200", "b200", "rtx5090"):
        with cards.standing_for(name):
            x = torch.empty(1, 1, 256, 128, dtype=torch.float16, device="meta")
            found[name] = attention.tensor_cores_config(call_of(x, x, x, True, 0.1, 100))["BLOCK_N"]
    assert found == {"h200": 48, "b200": 32, "rtx5090": 48}
