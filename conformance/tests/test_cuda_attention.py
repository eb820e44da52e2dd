"""Attention of few queries on CUDA: the tiles that only large calls choose, which ones they choose, how the join starts."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from kernelmux.backends.cuda import _attention_split_keys as split
from kernelmux.backends.cuda import _launch_cuda, attention
from kernelmux.backends.cuda._attention import Call, call_of
from kernelmux.emulator import checks, nvrtc
from kernelmux.registry import catalog, dispatch

SHARED = 227 * 1024  # bytes that a block may have on sm_90
needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))


def hypothetical(B: int, H: int, G: int, M: int, N: int, D: int = 128) -> Call:
    q, k = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((B, H, M, D), (B, G, N, D)))
    return call_of(q, k, k, False, 0.1)


def chosen(B: int, H: int, G: int, M: int, N: int) -> str:
    """The variant that a call in bf16 runs on an H200."""
    spec = catalog.spec("attention")
    case = spec.case(f"q={B}x{H}x{M}x128 k={B}x{G}x{N}x128 v={B}x{G}x{N}x128")
    call = spec.hypothetical(case, torch.bfloat16, capability=(9, 0))
    return [v for v in attention.VARIANTS if not dispatch.verdicts(call, "cuda", v)[0].reasons][-1]


@needs_nvrtc
@pytest.mark.parametrize(("H", "M", "N", "pieces"), [(2, 33, 500, 1), (8, 17, 700, 2)], ids=["one tile", "two tiles"])
def test_rows_of_warpgroups(H: int, M: int, N: int, pieces: int) -> None:
    """More tiles of keys than stages, an incomplete last one, and rows behind the last."""
    generator = torch.Generator().manual_seed(M)
    q, k, v = (torch.randn(1, h, n, 128, generator=generator).bfloat16() for h, n in ((H, M), (1, N), (1, N)))
    call = call_of(q, k, v, False, 0.1)
    with checks("full"):
        y, lse = attention.split_wgmma_plan(call, split.wgmma_config(call), pieces).run(q, k, v)
    s = 0.1 * q.double() @ k.double().mT
    torch.testing.assert_close(y.double(), torch.softmax(s, -1) @ v.double(), atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse.double(), torch.logsumexp(s, -1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("D", range(16, 257, 16))
@pytest.mark.parametrize("M", [5, 16, 32])
def test_tiles_of_warpgroups_fit(D: int, M: int) -> None:
    call = hypothetical(1, 8, 1, M, 4096, D)
    config = split.wgmma_config(call)
    rows = 16 * config["ROW_WARPS"] + 2 * config["STAGES"] * config["BLOCK_N"]
    assert config["BLOCKS"] * (2 * rows * call.width + 2048) <= SHARED + 1024


def test_how_the_join_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver gets the grid, the block, and the attribute of a programmatic dependent launch."""
    seen: list[Any] = []

    def launch_kernel_ex(config: int, handle: int, pointers: int, extra: int) -> int:
        found = _launch_cuda._LaunchConfig.from_address(config)
        attribute = found.attributes[0]
        seen.extend(
            (list(found.sizes), found.stream, found.count, attribute.id, attribute.value[0], handle, pointers, extra)
        )
        return 0

    monkeypatch.setattr(_launch_cuda, "_launch_kernel_ex", lambda: launch_kernel_ex)
    function: Any = object.__new__(_launch_cuda.CudaFunction)
    function._handle, function._frames, function._parameters = 5, [], ()
    function.following._launch(5, 1, 2, 3, 4, 1, 1, 64, 77, 88, 0)
    assert seen == [[1, 2, 3, 4, 1, 1, 64], 77, 1, 6, 1, 5, 88, 0]
    assert function.following is not function and function.following._frames is not function._frames
    assert ctypes.sizeof(_launch_cuda._LaunchConfig) == 56 and ctypes.sizeof(_launch_cuda._Attribute) == 72


def test_rows_decide_the_variant() -> None:
    assert chosen(1, 32, 8, 1, 65536) == "split_keys"
    assert chosen(16, 16, 2, 16, 4096) == "split_wgmma"
