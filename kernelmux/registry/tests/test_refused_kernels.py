"""Kernels of CUDA and Triton that a card cannot run, on the emulator and on a GPU: the rung below runs."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import kernelmux as kx
from kernelmux.emulator import nvrtc
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.description import Backend, Implementation
from kernelmux.registry.call import dispatch
from kernelmux.registry.choice import refusals
from kernelmux.registry.tests import made_up
from kernelmux.registry.tests.made_up import told
from kernelmux.registry.util import cards

CUDA = """
extern "C" __global__ void wide(const float* x, float* y, int n) {
    extern __shared__ float buffer[];
    int i = threadIdx.x;
    if (i < n) { buffer[i] = x[i]; y[i] = buffer[i]; }
}
extern "C" __global__ void modern(const float* x, float* y, int n) {
    __shared__ float buffer[32];
    int i = threadIdx.x;
    unsigned at = __cvta_generic_to_shared(buffer + i);
    if (i < n) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(x + i));
        asm volatile("cp.async.wait_all;");
        y[i] = buffer[i];
    }
}
"""
TRITON = """
import triton
import triton.language as tl

@triton.jit
def product(x, y, K: tl.constexpr):
    i, k = tl.arange(0, 64), tl.arange(0, K)
    a = tl.load(x + i[:, None] * K + k[None, :])
    b = tl.load(x + k[:, None] * 64 + i[None, :])
    tl.store(y + i[:, None] * 64 + i[None, :], tl.dot(a, b))

@triton.jit
def odd(x, y, K: tl.constexpr):
    tl.static_assert(K == 1, "K has to be 1")
"""


def emulating(monkeypatch: pytest.MonkeyPatch, better: Callable[..., None], like: str = "cuda") -> None:
    """Makes "own" the only backend: its rung "fast" fills the result by `better(x, y)`, "slow" by torch."""
    emulation = registered.backend(like).emulation

    def fast(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        better(x, y)
        return y

    ladder = {"slow": Implementation(torch.square, ""), "fast": Implementation(fast, "")}
    own = Backend("own", "made up", 40, lambda device: None, emulates=True, emulation=emulation)
    made_up.install(monkeypatch, {"own": (own, {"square": ladder})})
    refusals._forget()  # what another test has seen refused
    monkeypatch.setattr("kernelmux.registry.choice.warn_once._emulating", {"own"})


def ran(card: str, x: torch.Tensor) -> tuple[str, list[str]]:
    """What a call of backend "own" runs on a card in the end, and what it says."""
    dispatch._plans.clear()
    with cards.standing_for(card):
        texts = told(lambda: kx.square(x, backend="own"))
        with warnings.catch_warnings(action="error"):
            kx.square(x, backend="own")
        return kx.which("square", x, backend="own"), texts


@pytest.mark.skipif(torch.cuda.is_available() or nvrtc.unavailable() is not None, reason="emulates no CUDA")
@pytest.mark.parametrize(
    ("entry", "shared", "card", "words"),
    [
        ("wide", 120 << 10, "rtx4090", ["122880 bytes of shared memory", "RTX 4090 (sm_89) may have 101376 bytes"]),
        ("modern", 0, "t4", ["does not compile for NVIDIA T4 (sm_75)", "cp.async", "sm_80"]),
    ],
)
def test_a_kernel_of_cuda_that_a_card_cannot_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entry: str, shared: int, card: str, words: list[str]
) -> None:
    from kernelmux.backends.cuda import Source

    (tmp_path / "own.cu").write_text(CUDA)
    kernel = Source(str(tmp_path / "own.py")).kernel(entry, "x* y* n:i32")
    emulating(monkeypatch, lambda x, y: kernel(1, 32, x, y, x.numel(), shared=shared))
    x = torch.arange(8.0)
    assert ran("h200", x) == ("own/fast", [])
    name, (text,) = ran(card, x)
    assert name == "own/slow" and all(word in text for word in words)


@pytest.mark.skipif(registered.unavailable("triton", torch.device("cpu")) is not None, reason="emulates no Triton")
@pytest.mark.parametrize(
    ("name", "card", "words"),
    [
        ("product", "rtx4090", ["out of resource: shared memory", "RTX 4090 (sm_89) may have 101376 bytes"]),
        ("odd", "h200", ["does not compile for NVIDIA H200 SXM (sm_90): ", "K has to be 1"]),
    ],
)
def test_a_kernel_of_triton_that_a_card_cannot_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, card: str, words: list[str]
) -> None:
    (tmp_path / f"own_{name}.py").write_text(TRITON)
    monkeypatch.syspath_prepend(str(tmp_path))
    kernel = getattr(importlib.import_module(f"own_{name}"), name)
    emulating(monkeypatch, lambda x, y: kernel[(1,)](x, y, K=512), like="triton")
    which, (text,) = ran(card, torch.zeros(64, 512, dtype=torch.bfloat16))
    assert which == "own/slow" and all(word in text for word in words)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "name", ["shared memory", "threads", "source", "shared memory of Triton", "assertion of Triton"]
)
def test_a_gpu_refuses_as_the_emulator_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    """What CuPy and Triton raise, by the driver of a real card, which works on afterwards."""
    from kernelmux.backends.cuda import Source

    def better(x: torch.Tensor, y: torch.Tensor) -> None:
        if "Triton" in name:
            triton = importlib.import_module("own_on_gpu")
            kernel, size = (triton.product, 1024) if "memory" in name else (triton.odd, 512)
            kernel[(1,)](x, y, K=size)
            return
        text = CUDA if name != "source" else "nonsense"
        (tmp_path / "own.cu").write_text(text)
        shared, threads = (1 << 20 if "memory" in name else 0), (2048 if name == "threads" else 32)
        Source(str(tmp_path / "own.py")).kernel("wide", "x* y* n:i32")(1, threads, x, y, 8, shared=shared)

    (tmp_path / "own_on_gpu.py").write_text(TRITON)
    monkeypatch.syspath_prepend(str(tmp_path))
    emulating(monkeypatch, better)
    x = torch.ones(64, 1024, dtype=torch.bfloat16 if "Triton" in name else torch.float32, device="cuda")
    (text,) = told(lambda: kx.square(x, backend="own"))
    assert ("does not compile" in text) is (name in ("source", "assertion of Triton"))
    assert torch.cuda.get_device_name() in text
    assert told(lambda: torch.equal(kx.square(x, backend="own"), x)) == []
    torch.cuda.synchronize()
