"""Attention of few queries on CUDA: the tiles that only large calls choose, which ones they choose, how the join starts."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelmux.backends.cuda import attention, paged_attention
from kernelmux.backends.cuda._launch import launch_cuda
from kernelmux.backends.cuda.attention import _split_keys as split
from kernelmux.backends.cuda.attention._call import AttentionCall, call_of
from kernelmux.emulator import checks, nvrtc
from kernelmux.registry import catalog
from kernelmux.registry.call import dispatch
from kernelmux.registry.util import cuda_driver

SHARED = 227 * 1024  # bytes that a block may have on sm_90
needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))


def hypothetical(B: int, H: int, G: int, M: int, N: int, D: int = 128) -> AttentionCall:
    q, k = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((B, H, M, D), (B, G, N, D)))
    return call_of(q, k, k, False, 0.1)


def chosen(B: int, H: int, G: int, M: int, N: int) -> str:
    """The variant that a call in bf16 runs on an H200."""
    spec = catalog.spec("attention")
    case = spec.case(f"q={B}x{H}x{M}x128 k={B}x{G}x{N}x128 v={B}x{G}x{N}x128")
    call = spec.hypothetical(case, torch.bfloat16, capability=(9, 0))
    return [v for v in attention.VARIANTS if not dispatch.verdicts(call, "cuda", v)[0].reasons][-1]


@needs_nvrtc
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("H", "M", "N", "pieces"), [(2, 33, 500, 1), (8, 17, 700, 2)], ids=["few rows", "more rows"])
def test_rows_of_warpgroups(H: int, M: int, N: int, pieces: int, groups: int) -> None:
    """More tiles of keys than stages, an incomplete last one, and rows behind the last."""
    generator = torch.Generator().manual_seed(M)
    q, k, v = (torch.randn(1, h, n, 128, generator=generator).bfloat16() for h, n in ((H, M), (1, N), (1, N)))
    call = call_of(q, k, v, False, 0.1)
    with checks("full"):
        config = {**split.wgmma_config(call), "ROW_WARPS": 4 * groups, "STAGES": 3}
        y, lse = attention.split_wgmma_plan(call, config, pieces).run(q, k, v)
    s = 0.1 * q.double() @ k.double().mT
    torch.testing.assert_close(y.double(), torch.softmax(s, -1) @ v.double(), atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse.double(), torch.logsumexp(s, -1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("D", range(16, 257, 16))
@pytest.mark.parametrize(("B", "M"), [(1, 5), (1, 32), (256, 16)])
def test_tiles_of_warpgroups_fit(B: int, M: int, D: int) -> None:
    """With two stages at least; each block has a kilobyte that is the system's."""
    call = hypothetical(B, 8, 1, M, 4096, D)
    config = split.wgmma_config(call)
    rows = 16 * config["ROW_WARPS"] + 2 * config["STAGES"] * config["BLOCK_N"]
    assert config["STAGES"] >= 2 and config["BLOCKS"] * (2 * rows * call.width + 2048) <= SHARED + 1024


def test_how_the_join_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver gets the grid, the block, and the attribute of a programmatic dependent launch."""
    seen: list[Any] = []

    def launch_kernel_ex(config: int, handle: int, pointers: int, extra: int) -> int:
        found = cuda_driver._LaunchConfig.from_address(config)
        attribute = found.attributes[0]
        seen.extend(
            (list(found.sizes), found.stream, found.count, attribute.id, attribute.value[0], handle, pointers, extra)
        )
        return 0

    monkeypatch.setattr(launch_cuda, "launch_kernel_ex", lambda: launch_kernel_ex)
    function: Any = object.__new__(launch_cuda.CudaFunction)
    monkeypatch.setattr(launch_cuda.cards, "of", lambda device: SimpleNamespace(capability=(9, 0)))
    function._handle, function._frames, function._parameters, function._index = 5, [], (), 0
    function.following._launch(5, 1, 2, 3, 4, 1, 1, 64, 77, 88, 0)
    assert seen == [[1, 2, 3, 4, 1, 1, 64], 77, 1, 6, 1, 5, 88, 0]
    assert function.following is not function and function.following._frames is not function._frames
    assert ctypes.sizeof(cuda_driver._LaunchConfig) == 56 and ctypes.sizeof(cuda_driver._Attribute) == 72


@pytest.mark.parametrize(
    ("sizes", "variant"),
    [
        ((1, 32, 8, 1, 65536), "split_keys"),
        ((64, 32, 4, 4, 4096), "split_keys"),
        ((32, 32, 8, 16, 8192), "split_keys"),
        ((8, 32, 8, 16, 16384), "split_wgmma"),
        ((64, 32, 4, 16, 4096), "split_wgmma"),
    ],
)
def test_rows_and_heads_decide_the_variant(sizes: tuple[int, int, int, int, int], variant: str) -> None:
    assert chosen(*sizes) == variant


def test_long_splits_of_several_tiles_of_rows_overlap() -> None:
    def pieces(N: int, M: int = 16) -> int:
        call = hypothetical(8, 16, 2, M, N)
        return split.wgmma_splits(call, split.wgmma_config(call))

    assert (pieces(4096), pieces(16384), pieces(16384, M=8)) == (4, 8, 8)


def test_blocks_of_pages_share_a_multiprocessor() -> None:
    """Three where there are many heads of keys, if they fit."""
    assert paged_attention.paged_config(hypothetical(64, 32, 4, 1, 8192))["BLOCKS"] == 3
    assert paged_attention.paged_config(hypothetical(1, 32, 8, 1, 65536))["BLOCKS"] == 2
    for D in range(16, 129, 16):
        call = hypothetical(64, 32, 4, 1, 8192, D)
        config = paged_attention.paged_config(call)
        bytes_of_stage = 2 * (16 + 2 * config["BLOCK_N"]) * call.width + 2 * 4 * config["BLOCK_N"]
        assert config["BLOCKS"] * (config["STAGES"] * bytes_of_stage + 1024) <= SHARED + 1024


@needs_nvrtc
def test_pages_of_many_sequences() -> None:
    """Blocks of two stages, whose tiles and page numbers stream on from one sequence to the next; some have no keys."""
    generator = torch.Generator().manual_seed(0)
    B, S, L, D = 64, 16, 20, 128
    q = torch.randn(B, 4, D, generator=generator).bfloat16()
    k, v = (torch.randn(B * L, 1, S, D, generator=generator).bfloat16() for _ in range(2))
    table = torch.randperm(B * L, generator=generator).view(B, L).int()
    lengths = torch.randint(0, S * L + 1, (B,), generator=generator).int()
    lengths[::7] = 0
    with checks("full"):
        y = paged_attention.paged_attention(q, k, v, table, lengths, 0.1)
    want = catalog.spec("paged_attention").reference(*(x.double() for x in (q, k, v)), table, lengths, 0.1)
    torch.testing.assert_close(y.double(), want, atol=2e-2, rtol=2e-2)
