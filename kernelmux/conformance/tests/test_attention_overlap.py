"""What keeps the exponentials of attention beside the products, and the order of blocks in its gradient."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from kernelmux.backends.cuda import attention
from kernelmux.backends.cuda._launch.launch_emulated import AS_CUPY
from kernelmux.backends.cuda._launch.layout import layout
from kernelmux.backends.cuda.attention._call import call_of
from kernelmux.backends.cuda.attention_backward import _one_walk as one_walk
from kernelmux.backends.cuda.attention_backward._call import AttentionGradientCall
from kernelmux.emulator import checks, compile_ptx, nvrtc
from kernelmux.registry.spec.sliding_windows import Mask
from kernelmux.registry.util import cards

needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))


def ptx(causal: bool) -> str:
    source = attention._WGMMA
    defines: dict[str, object] = {"BLOCK_M": 128, "BLOCK_N": 128, "CONSUMERS": 2, "HEAD_DIM": 64, "CAUSAL": int(causal)}
    options = (*source.options(defines), *AS_CUPY)
    text: str = compile_ptx(
        source.text(), options=options, arch="sm_90a", filename=source.path.name, include=source.folders
    )
    return text


@needs_nvrtc
@pytest.mark.parametrize("causal", [False, True])
def test_a_branch_stands_between_the_exponentials_and_the_wait(causal: bool) -> None:
    """ptxas moves a wait for products up to the last branch; it would stand in front of the exponentials."""
    found = re.findall(r"wgmma\.wait_group\.sync\.aligned\s+(\d)|(ex2\.approx)|(mbarrier\.try_wait)", ptx(causal))
    order = "".join("1" if a == "1" else "0" if a == "0" else "e" if b else "b" for a, b, _ in found)
    assert re.search(r"1e+b0", order), order


@needs_nvrtc
@pytest.mark.parametrize(
    ("H", "G", "M", "N", "D", "causal"),
    [(3, 3, 300, 300, 88, True), (6, 3, 70, 130, 64, False), (3, 3, 140, 90, 200, False)],
)
def test_works_follow_one_another(H: int, G: int, M: int, N: int, D: int, causal: bool) -> None:
    """The first scores of a work are made beside the last values of the one before; some warpgroups have no rows."""
    generator = torch.Generator().manual_seed(M)
    q, k, v = (torch.randn(1, h, n, D, generator=generator).bfloat16() for h, n in ((H, M), (G, N), (G, N)))
    with cards.standing_for(replace(cards.table()["h200"], processors=2)), checks("full"):
        y, lse = attention.wgmma(q, k, v, causal, 0.1, None, "ieee", None)
    s = 0.1 * q.double() @ k.double().repeat_interleave(H // G, 1).mT
    if causal:
        s = s.masked_fill(torch.ones(M, N, dtype=torch.bool).triu(N - M + 1), -torch.inf)
    want = torch.softmax(s, -1) @ v.double().repeat_interleave(H // G, 1)
    torch.testing.assert_close(y.double(), want, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse.double(), torch.logsumexp(s, -1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((52, 8, 307, 128, False), (2, 160)),
        ((4, 32, 4096, 128, True), (2, 128)),
        ((9, 20, 3648, 88, True), (3, 96)),
        ((9, 1, 1742, 88, False), (2, 176)),
        ((1, 8, 512, 128, False), (1, 128)),
        ((4, 16, 4096, 192, True), (2, 112)),
    ],
)
def test_warpgroups_and_keys(sizes: tuple[int, int, int, int, bool], expected: tuple[int, int]) -> None:
    """Tiles that are part empty, and multiprocessors without work, decide."""
    B, H, N, D, causal = sizes
    q = torch.empty(B, H, N, D, dtype=torch.bfloat16, device="meta")
    config = attention.wgmma_config(call_of(q, q, q, causal, 0.1))
    assert (config["CONSUMERS"], config["BLOCK_N"]) == expected


def backward_call(H: int, G: int, causal: bool, N: int = 512) -> AttentionGradientCall:
    q, k = (layout(torch.empty(2, h, N, 64, dtype=torch.bfloat16, device="meta")) for h in (H, G))
    return AttentionGradientCall((q, q, k, k, q), Mask(causal, 0, 0), 0.1, cards.emulated())


@pytest.mark.parametrize(("H", "G", "causal", "longest"), [(8, 2, True, 1), (8, 8, True, 0), (8, 2, False, 0)])
def test_long_blocks_of_groups_start_first(H: int, G: int, causal: bool, longest: int) -> None:
    """Under a causal mask the blocks of the first keys are the longest, a whole group of heads long."""
    call = backward_call(H, G, causal)
    assert one_walk.fused_config(call)["LONGEST_FIRST"] == longest
    assert not longest or one_walk.fused_section(call) == 4


@pytest.mark.parametrize(("H", "N", "longest"), [(16, 4096, 1), (16, 2048, 0), (32, 4096, 0)])
def test_long_blocks_of_few_heads_start_first(H: int, N: int, longest: int) -> None:
    """Beside the last blocks of a few heads nothing else is left to run."""
    call = backward_call(H, H, True, N)
    assert one_walk.fused_config(call)["LONGEST_FIRST"] == longest and one_walk.fused_section(call) == 8
