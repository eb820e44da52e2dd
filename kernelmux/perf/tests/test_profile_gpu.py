"""On a GPU: what is planted in a program or a kernel is named by the tool that should name it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernelmux.perf.emulated import ncu

PLANTED = Path(__file__).parent / "planted_programs"
KERNELS = {
    "stores_scattered": "-> stores: used 12%: uncoalesced stores",
    "spilled": "registers are spilled to local memory",
}
needs_ncu = pytest.mark.skipif(ncu.find() is None, reason=ncu.MISSING)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def told(*words: str) -> str:
    """What a command prints; with `pytest -s` to be seen, for the record."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    print(f"$ python {' '.join(words)}", done.stdout, done.stderr, sep="\n")
    return done.stdout + done.stderr


def profiled(folder: Path, *words: str) -> str:
    return told("-m", "kernelmux.perf.profile", "--out", str(folder), *words)


def test_idle_gaps_of_a_script_are_named_with_what_the_host_did(tmp_path: Path) -> None:
    text = profiled(tmp_path, str(PLANTED / "idle_gap.py"))
    nothing = "the host launched nothing, and no operator ran: Python, input data, or a sleep"
    gaps = [line for line in text.splitlines() if line.startswith("-> idle for") and line.endswith(nothing)]
    waited = ["the queue had run empty at cudaDeviceSynchronize; then" in gap for gap in gaps]
    assert sorted(waited) == [False, True], text


@needs_ncu
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_planted_kernel_is_named_by_ncus_counters(tmp_path: Path, kernel: str) -> None:
    file = f"{PLANTED / 'planted.py'}:{kernel}"
    text = profiled(tmp_path, "--op", "square", "--impl", file, "--dtype", "fp32", "--workload", "x=16777216")
    assert KERNELS[kernel] in text, text
    for other in KERNELS.keys() - {kernel}:
        assert KERNELS[other] not in text, text


@needs_ncu
def test_a_sound_kernel_is_blamed_for_nothing(tmp_path: Path) -> None:
    words = ["--op", "square", "--backend", "cuda", "--dtype", "fp32", "--workload", "x=16777216"]
    text = profiled(tmp_path, *words)
    assert "by ncu" in text, text
    assert not any(sentence in text for sentence in KERNELS.values()), text


def test_a_store_out_of_bounds_is_named_with_its_call_and_launch() -> None:
    text = told(str(PLANTED / "illegal_address.py"))  # so many calls that one of them notices
    assert "KernelFailure: square[impl/beyond] failed on the GPU: CUDA error 700" in text, text
    for line in (
        "call: x fp32[1048576] on cuda:0",
        "launch: square_beyond grid (1024, 1, 1), block (1024, 1, 1)",
        "likely cause: a kernel accessed memory that belongs to no allocation",
        "operators that ran last",
        "compute-sanitizer --tool memcheck",
        "kernelmux emulate square --impl",
    ):
        assert line in text, text


def test_a_store_out_of_bounds_that_torch_notices_has_a_note() -> None:
    text = told(str(PLANTED / "illegal_address.py"), "1")
    assert "AcceleratorError: CUDA error" in text and "latest at the end: square[impl/beyond] 1048576:fp32" in text, (
        text
    )
