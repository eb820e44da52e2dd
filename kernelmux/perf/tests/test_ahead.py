"""Rows compiled without a GPU: what a process with the GPU looks for is there, and nothing is left behind here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import kernelmux as kx
from kernelmux import emulator
from kernelmux.backends.cuda._launch import launch_cuda
from kernelmux.emulator import nvrtc
from kernelmux.perf.planning.plan import Row
from kernelmux.perf.session import ahead
from kernelmux.registry.backend import device_tables
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.util import cards
from kernelmux.warm import compiling

needs_compilers = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=str(nvrtc.unavailable()))


@needs_compilers
def test_a_process_with_the_gpu_finds_all_that_one_without_has_compiled() -> None:
    """layer_norm_backward has kernels that may start before the one ahead of them has ended."""
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "kernelmux.perf.tests.as_on_a_gpu", "softmax", "layer_norm_backward"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert min(missing for _, missing in told["empty"].values()) > 1
    for backend, (asked, missing) in told["ahead"].items():
        assert asked > 1 and missing == 0, backend


@needs_compilers
def test_inside_launchers_see_the_card_and_its_tables_and_outside_nothing_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(cards.VARIABLE, "NVIDIA H100 80GB HBM3")
    seen: list[tuple[str | None, str]] = []
    laid_out = registered.laid_out

    def watched(*given: object) -> object:
        seen.append((device_tables.gpu(-1), cards.of(-1).key))
        return laid_out(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(registered, "laid_out", watched)
    before = emulator.load_by(str)
    emulator.load_by(before)
    ahead.compile(Row("add", "x=67108864 y=67108864", "fp32", "cuda", "vectorized"))
    assert seen == [("NVIDIA H100 80GB HBM3", "h100")] and device_tables.gpu(-1) is None
    assert emulator.load_by(before) is before


@needs_compilers
@pytest.mark.filterwarnings("ignore::kernelmux.EmulationWarning")
@pytest.mark.parametrize("variant", ["cuda/vectorized", "triton/blocked"])
def test_a_call_behind_it_in_the_same_process_runs(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, name = variant.split("/")
    if reason := registered.unavailable(backend, torch.device("cpu")):
        pytest.skip(reason)
    monkeypatch.setenv(cards.VARIABLE, "NVIDIA A10")
    x = torch.arange(1000.0)
    ahead.compile(Row("add", "x=1000 y=1000", "fp32", backend, name))
    assert torch.equal(kx.add(x, x, backend=variant), x + x)


def test_other_backends_and_a_gpu_that_stands_for_a_lesser_card_are_compiled_for_by_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [compiling.able(name) for name in ("cuda", "triton", "torch_ref", "peer")] == [True, True, False, False]
    monkeypatch.setenv(cards.AS_VARIABLE, "a100")
    assert not compiling.able("cuda")


@pytest.mark.parametrize("lesser", [False, True])
def test_what_our_nvrtc_cannot_compile_is_left_to_cupy_but_for_a_lesser_card(
    lesser: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(*given: object) -> None:
        raise nvrtc.NvrtcUnavailableError("no headers")

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(RawModule=lambda code, options: (code, options)))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(cards, "_device", lambda index: cards.named("a100" if lesser else "h200"))
    monkeypatch.setattr(launch_cuda, "architecture", lambda index: cards.of(index).arch)
    for name in ("compile_ptx", "compile_cubin"):
        monkeypatch.setattr(nvrtc, name, unavailable)
    given = ("text", ("-DN=1",), "rows.cu", (), 0)
    if lesser:
        with pytest.raises(nvrtc.NvrtcUnavailableError):
            launch_cuda._module(*given)
    else:
        assert launch_cuda._module(*given) == ("text", ("-DN=1", "-lineinfo", "-arch=sm_90a"))
