"""What errors say: kind, line, block, thread and instruction of small defects, in fast and in full mode."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from kernelmux.emulator import EmulatorError
from kernelmux.emulator.tests.launching import launch, needs_nvrtc, source

pytestmark = needs_nvrtc

i32 = np.int32


@dataclass(frozen=True)
class Defect:
    """A kernel `k(x, y, n)` of 64 threads with one defect; `line` is a piece of the line to be named."""

    body: str
    kind: str
    line: str
    fast: bool = True  # whether the fast checks report it too
    grid: int = 1
    threads: int = 64
    n: int = 64
    says: str = ""


LOAD = "t[i] = x[i];"

DEFECTS = {
    "write past the end": Defect(
        "if (i <= n)\n y[i] = 1.f;",
        "out of bounds",
        "y[i] = 1.f",
        n=63,
        says="byte offset 252 of y of shape 63 (float32), which has 252 bytes",
    ),
    "write before the start": Defect("y[i - 1] = x[i];", "out of bounds", "y[i - 1]", says="byte offset -4 of y"),
    "read past the end": Defect(
        "float v =\n x[i + 1];\n y[i] = v;", "out of bounds", "x[i + 1]", says="byte offset 256 of x"
    ),
    "far away": Defect("y[i + 100000000] = 1.f;", "out of bounds", "y[i + 100000000]"),
    "null pointer": Defect(
        "float* p = (float*)(long long)(n - 64);\n p[i] = 1.f;", "bad pointer", "p[i] = 1.f", says="null pointer"
    ),
    "wild pointer": Defect("float* p = (float*)0x123456789a00ull;\n p[i] = 1.f;", "bad pointer", "p[i] = 1.f"),
    "misaligned vector": Defect(
        "float4 v = *(float4*)(x + 1 + (i & 7) * 4);\n y[i] = v.x + v.w;",
        "misaligned",
        "float4 v",
        says="multiple of 16",
    ),
    "shared index too large": Defect(
        "__shared__ float t[64];\n t[i + 1] = x[i];\n __syncthreads(); y[i] = t[i];",
        "out of bounds",
        "t[i + 1]",
        says="offset 256 of shared memory, which has 256",
    ),
    "barrier missing": Defect(
        f"__shared__ float t[64]; {LOAD}\n y[i] = t[63 - i];",
        "race",
        "y[i] = t[63 - i]",
        fast=False,
        says="no barrier since thread",
    ),
    "barrier missing before reuse": Defect(
        f"__shared__ float t[64]; {LOAD} __syncthreads();\n float v = t[63 - i];\n t[i] = v;\n __syncthreads();",
        "race",
        "t[i] = v",
        fast=False,
        says="read it",
    ),
    "two writers": Defect(
        "__shared__ float t[64];\n t[i / 2] = x[i];\n __syncthreads(); y[i] = t[i / 2];",
        "race",
        "t[i / 2] = x[i]",
        fast=False,
    ),
    "warp barrier missing": Defect(
        "__shared__ float t[64]; t[i] = x[i]; __syncthreads();\n t[i] = 2.f * t[i];\n y[i] = t[i ^ 1];",
        "race",
        "y[i] = t[i ^ 1]",
        fast=False,
    ),
    "uninitialised shared memory": Defect(
        f"__shared__ float t[64]; if (i < 60) {LOAD} __syncthreads();\n y[i] = t[i];",
        "uninitialised",
        "y[i] = t[i]",
        fast=False,
    ),
    "barrier in one branch": Defect(
        "if (i < 32)\n __syncthreads();\n else { y[0] = 1.f;\n __syncthreads(); }",
        "divergence",
        "__syncthreads(); }",
        says="different barriers",
    ),
    "barrier inside a warp's branch": Defect(
        "if (i & 1)\n __syncthreads();\n else { y[i] = 1.f; __syncthreads(); }\n y[i] = x[i];",
        "divergence",
        "__syncthreads()",
        says="different barriers",
    ),
    "full mask in a branch": Defect(
        "float v = x[i]; if (i & 1)\n v = __shfl_xor_sync(0xffffffff, v, 2);\n __syncthreads(); y[i] = v;",
        "deadlock",
        "__shfl_xor_sync",
    ),
    "shuffle of half a warp": Defect(
        "y[i] = __shfl_down_sync(0xffffffff, x[i], 1);",
        "divergence",
        "__shfl_down_sync",
        threads=48,
        n=48,
        says="does not take part",
    ),
    "lane outside of its mask": Defect(
        "y[i] = __shfl_sync(0xffff, x[i], 0);", "divergence", "__shfl_sync", says="does not name it"
    ),
    "endless loop": Defect(
        "volatile float* p = y;\n while (p[0] == 0.f) {}\n y[1] = 1.f;", "time limit", "while (p[0]"
    ),
    "two blocks, one place": Defect("y[i] = x[i] + blockIdx.x;", "race", "y[i] = x[i]", fast=False, grid=2),
    "sum without atomics": Defect("y[0] += x[i];", "race", "y[0] += x[i]", fast=False),
    "value overwritten by a neighbour": Defect(
        "y[i] = x[i];\n y[i ^ 1] = 3.f * x[i];", "race", "y[i ^ 1]", fast=False, says="thread 1 of block 0"
    ),
    "failed assert": Defect("assert(n == 3);", "trap", "assert(n == 3)", says="n == 3"),
    "trap": Defect('if (i == 40)\n asm("trap;");', "trap", "trap;"),
    "endless recursion": Defect("y[i] = deep(n + 100000, x);", "call stack", "deep"),
    "unknown instruction": Defect('asm volatile("tcgen05.shift.cta_group::1.down [0];");', "unsupported", "tcgen05"),
    "unknown modifier": Defect(
        'unsigned v; asm volatile("cvt.rs.f16x2.f32 %0, 0f3F800000, 0f3F800000, 5;" : "=r"(v));\n y[i] = v;',
        "unsupported",
        "cvt.rs",
    ),
}

DEEP = """__device__ __noinline__ float deep(int n, const float* x) {
    volatile float b[64];
    b[n & 63] = n;
    return n ? deep(n - 1, x) + b[n & 31] : 0;
}
"""

NOT_SEEN = {
    "overrun into the next row of one array": (
        "__shared__ float t[8][8]; t[i / 8][i % 8] = x[i]; __syncthreads(); y[i] = t[i / 8][i % 8 + 1 - (i == 63)];"
    ),
    "write through a const pointer": "((float*)x)[i] = 1.f;",
    "division by zero": "y[i] = 7 % (n - 64);",
}


def _text(body: str) -> str:
    helper = DEEP if "deep" in body else ""
    head = 'extern "C" __global__ void k(const float* x, float* y, int n) {\nconst int i = threadIdx.x;'
    return f"{helper}{head}\n{body}\n}}\n"


def _run(defect: Defect, mode: str) -> None:
    x, y = torch.arange(defect.n, dtype=torch.float32), torch.zeros(defect.n)
    launch(
        _text(defect.body),
        "k",
        defect.grid,
        defect.threads,
        x,
        y,
        i32(defect.n),
        mode=mode,
        limit=0.3,
        names=("x", "y", "n"),
    )


@pytest.mark.parametrize("name", DEFECTS)
def test_reported(name: str) -> None:
    defect = DEFECTS[name]
    with pytest.raises(EmulatorError) as caught:
        _run(defect, "full")
    error, lines = caught.value, _text(defect.body).splitlines()
    assert error.kind == defect.kind, str(error)
    assert error.kernel is not None and error.kernel.startswith("k")
    assert error.line is not None and defect.line in lines[error.line - 1], (
        f"{error}\nline: {lines[(error.line or 1) - 1]}"
    )
    assert defect.says in str(error), str(error)
    assert f"kernel.cu:{error.line}" in str(error) and f"instruction: {error.instruction}" in str(error)


@pytest.mark.parametrize("name", DEFECTS)
def test_fast_checks(name: str) -> None:
    """Bounds, alignment, barriers and pointers are checked always."""
    if DEFECTS[name].fast:
        with pytest.raises(EmulatorError) as caught:
            _run(DEFECTS[name], "fast")
        assert caught.value.kind == DEFECTS[name].kind
    else:
        _run(DEFECTS[name], "fast")


@pytest.mark.parametrize("name", NOT_SEEN)
def test_not_reported(name: str) -> None:
    """What shows in the results alone, if at all."""
    _run(Defect(NOT_SEEN[name], "", ""), "full")


def test_block_and_thread_are_named() -> None:
    x, y = torch.zeros(37, 100), torch.zeros(37, 100)
    place = "y[(long long)blockIdx.x * n + i"
    text = source("rows").replace(place, f"{place} + (blockIdx.x == 36 && i == 70 ? 5000 : 0)")
    with pytest.raises(EmulatorError) as caught:
        launch(text, "softmax_rows", 37, 64, x, y, i32(100), names=("x", "y", "n"))
    assert (caught.value.block, caught.value.thread) == ((36, 0, 0), (6, 0, 0))


REMOVALS: dict[str, tuple[str, str, str, Callable[[], Any]]] = {
    "softmax, second barrier": (
        "rows",
        "    __syncthreads();  // partial is used again\n",
        "softmax_rows",
        lambda: (3, 256, torch.randn(3, 500), torch.empty(3, 500), i32(500)),
    ),
    "transpose": (
        "tiles",
        "    __syncthreads();\n    column = ",
        "transpose_tiles",
        lambda: ((2, 2), (32, 8), torch.randn(64, 64), torch.empty(64, 64), i32(64), i32(64)),
    ),
    "matmul, end of loop": (
        "tiles",
        "        __syncthreads();  // before the tiles are overwritten\n",
        "matmul_tiles",
        lambda: ((2, 2), (16, 16), *(torch.randn(n) for n in (32 * 48, 48 * 32, 32 * 32)), i32(32), i32(32), i32(48)),
    ),
}


@pytest.mark.parametrize("name", REMOVALS)
def test_removed_barrier(name: str) -> None:
    stem, piece, kernel, make = REMOVALS[name]
    text = source(stem)
    assert text.count(piece) == 1
    replacement = "    column = " if "column" in piece else ""
    with pytest.raises(EmulatorError) as caught:
        launch(text.replace(piece, replacement), kernel, *make())
    assert caught.value.kind == "race", str(caught.value)


def _raised(body: str, *args: Any, threads: int = 64, names: tuple[str, ...] = ("x", "y", "n")) -> EmulatorError:
    with pytest.raises(EmulatorError) as caught:
        launch(_text(body), "k", 1, threads, *args, names=names)
    return caught.value


def test_values_of_the_thread_are_given() -> None:
    """Of the registers that the instruction reads, in the thread that failed: pointers as elements of tensors."""
    error = _raised("y[i + (i == 40 ? 63 : 0)] = x[i] * 2.f;", torch.arange(64.0), torch.zeros(64), i32(64))
    assert error.thread == (40, 0, 0)
    assert sorted(error.values.values()) == ["&y[103]", "80.0"]
    assert f"with {', '.join(f'{k} = {v}' for k, v in error.values.items())}" in str(error)


def test_values_in_shared_memory() -> None:
    """Thread 1 reads what thread 2 writes; its register holds the offset."""
    body = "__shared__ float t[64];\n t[i] = x[i];\n y[i] = t[(i + 1) & 63];"
    error = _raised(body, torch.arange(64.0), torch.zeros(64), i32(64))
    assert error.kind == "race" and error.thread == (0, 0, 0)
    assert list(error.values.values()) == ["4"]


def test_values_of_diverged_lanes() -> None:
    """A group holds some lanes only; the value is that of the lane and not of its position."""
    body = "if (i % 3 == 1) y[i * 2] = x[i];"
    error = _raised(body, torch.arange(64.0), torch.zeros(64), i32(64))
    assert error.thread == (34, 0, 0)
    assert set(error.values.values()) == {"&y[68]", "34.0"}


@pytest.mark.parametrize(
    ("shape", "index", "element"),
    [((64,), "64", "y[64]"), ((8, 8), "64", "y[8, 0]"), ((4, 16), "70", "y[4, 6]"), ((8, 8), "-1", "y[-1, 7]")],
)
def test_elements_are_named(shape: tuple[int, ...], index: str, element: str) -> None:
    error = _raised(f"if (i == 3) y[{index}] = 1.f;", torch.zeros(64), torch.zeros(shape), i32(64))
    assert str(error).split("\n")[0].endswith(f": {element}")


def test_elements_of_strided_tensors_are_named() -> None:
    """By the strides of the tensor, longest first; none where an axis is expanded."""
    y = torch.zeros(8, 16).t()  # y[i, j] lies at 16 * j + i
    assert ": y[3, 8]" in str(_raised("if (i == 3) y[128 + 3] = 1.f;", torch.zeros(64), y, i32(64)))
    y = torch.zeros(1).expand(8)
    assert str(_raised("if (i == 3) y[128] = 1.f;", torch.zeros(64), y, i32(64))).split("\n")[0].endswith("bytes")


def test_disagreement_names_the_value_that_stays() -> None:
    error = _raised("y[0] = x[i];", torch.arange(64.0), torch.zeros(64), i32(64))
    assert "where 63.0 stays" in str(error) and "0.0" in error.values.values()
