"""Triton kernels, compiled for the GPU at hand, or for sm_90 and run by the emulator where there is none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from kernelmux.registry.backend import Ahead, Backend
from kernelmux.registry.backend.package_versions import not_installed
from kernelmux.registry.conditions import Capability
from kernelmux.registry.util import cards

TRUE = ("1", "true", "on")  # as Triton reads its variables


def unavailable(device: torch.device) -> str | None:
    """None, or what is missing to run Triton kernels on tensors of `device`."""
    if reason := not_installed("triton", "triton", ("linux",)):
        return reason
    if os.environ.get("TRITON_INTERPRET", "").lower() in TRUE:
        return (
            "TRITON_INTERPRET is set, so that Triton interprets kernels and compiles none: "
            "unset it before Python starts"
        )
    if device.type == "cpu" and torch.cuda.is_available():
        return "Triton has one driver per process, and here it drives the GPU: move the tensors there"
    return None


def emulation() -> AbstractContextManager[object]:
    """Entered around each emulated call: the emulator is Triton's active driver for as long as that lasts."""
    from kernelmux import emulator

    card = cards.emulated()
    active: AbstractContextManager[object] = emulator.triton_active()
    return active if card.key == cards.DEFAULT else _for(card.sm, active)


@contextmanager
def _for(arch: str, active: AbstractContextManager[object]) -> Iterator[None]:
    from kernelmux import emulator

    with active, emulator.triton_driver.target(arch):
        yield


def compilers(device: torch.device) -> tuple[str, ...]:
    """ptxas, as Triton finds it: $TRITON_PTXAS_PATH, or its own. The emulator runs PTX, and ptxas counts registers."""
    from triton import knobs

    tool = knobs.nvidia.ptxas
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 10:
        tool = getattr(knobs.nvidia, "ptxas_blackwell", tool)
    return (f"ptxas {tool.version} of Triton: {tool.path}",)


HALVES, EIGHTHS = {torch.float16, torch.bfloat16}, {torch.float8_e4m3fn, torch.float8_e5m2}
# What Triton compiles to tcgen05.mma, read off its PTX for the workloads; the kernels of cuda have mma.sync there. The
# rungs for few rows (by_shape, split_keys) have mma.sync here too. sm_103 multiplies no int8 by tcgen05.
TCGEN05 = (
    "matmul/persistent", "linear/persistent", "fp8_matmul/blocked", "fp8_matmul/persistent", "attention/online",
    "attention/descriptors", "attention_backward/pointers", "attention_backward/descriptors", "conv2d/implicit_gemm",
    "conv2d_backward_input/implicit_gemm", "conv2d_backward_weight/implicit_gemm",
)  # fmt: skip
AHEAD = (
    # By planes and warpgroups, where CUDA has tf32 by mma.sync: 1 x 16 x 4096 x 128, causal, 2965.7 us, and 4231.6.
    Ahead(
        frozenset({"attention_backward/bf16x6"}), frozenset({torch.float32}), Capability((9, 0), below=(10, 0)),
        "six products of bf16 by warpgroups",
    ),
    Ahead(frozenset(TCGEN05), frozenset(HALVES | EIGHTHS), Capability((10, 0), below=(11, 0)), "tcgen05"),
    Ahead(
        frozenset({"int8_matmul/persistent"}),
        frozenset({torch.int8}),
        Capability((10, 0), below=(10, 3)),
        "tcgen05",
    ),
    # Of what both multiply by mma.sync: 405 us in place of 487, 421 of 516 as an A100, 408 of 593, 420 of 677 and 593 of
    # 868 as an RTX 4090, on an H100 that stands for them (docs/your_card.md).
    Ahead(
        frozenset({"conv2d/implicit_gemm", "conv2d_backward_input/implicit_gemm"}), frozenset(HALVES),
        Capability((8, 0), below=(9, 0)), "its tiles of channels-last images", torch.channels_last,
    ),
    Ahead(
        frozenset({"conv2d_backward_weight/implicit_gemm"}), frozenset(HALVES),
        Capability((8, 6), below=(9, 0)), "its tiles of channels-last images", torch.channels_last,
    ),
)  # fmt: skip

BACKEND = Backend(
    name="triton",
    summary="Triton",
    priority=20,
    unavailable=unavailable,
    emulates=True,
    emulation=emulation,
    replays=True,
    compilers=compilers,
    ahead=AHEAD,
    cores=(8, 0),  # for sm_75 its compiler makes FMA of every product
)
