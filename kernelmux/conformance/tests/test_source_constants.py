"""The integers of a source are found with their places, in Python, in Triton kernels and in CUDA C++."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelmux.conformance.source_constants import reader
from kernelmux.conformance.source_constants.constant import CONDITION, LIMIT, PARAMETER, TILE, Constant
from kernelmux.registry.backend import lookup as registered

LAUNCHER = '''
import torch
import nowhere_to_be_found
from .helpers import LIMIT, halves as split
from . import plans

_BLOCK = 1 << 8
SHARE: int = 3 * 7 * 32


def launch(x: torch.Tensor, axis: int = 4096, rows=12):
    """Of 777 rows."""
    n, most = x.shape[123], 40 * 50
    if n // 1024 > 4:
        return split(n)
    if n > most or x.numel() >= LIMIT:
        return plans.of(n)
    if n * x.element_size() > 6000:
        kernel[(n,)](x, BLOCK=_BLOCK, num_warps=72)
    return min(n, 9000) + n % 33 + cdiv(n, 48)


def unused(n):
    return n > 55555


@triton.jit
def kernel(x, n, BLOCK: tl.constexpr):
    if n > 5 * BLOCK:
        tl.store(x + tl.arange(0, 512), 0)
'''
HELPERS = "LIMIT = 10**5\n\ndef halves(n):\n    return n in (2048, 3072)\n"
PLANS = """
def of(n):
    table = {"ROWS": (96, 160)}
    return SOURCE.kernel("k", GROUP=128)


SOURCE = Source(__file__)
"""
CUDA = """#include "held.cuh"
// if (n > 11111)
#define WIDTH (GROUP / 2)
constexpr int SLOTS = 6 * 111;
__global__ void k(float* x, int n) {
    printf("%d > 22222", n);
    if (static_cast<int64_t>(n) > 5000u && n != 0x700)
        x[n % 48] = 0;
    for (int i = threadIdx.x; i < 7000; i += GROUP) x[i] = n > 8 * WIDTH ? 1 : 0;
}
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in {
        "__init__.py": "",
        "launcher.py": LAUNCHER,
        "helpers.py": HELPERS,
        "plans.py": PLANS,
        "plans.cu": CUDA,
        "held.cuh": "#define HELD 1500\n#if N > 1700\n#endif\n",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def found(package: Path) -> dict[int, Constant]:
    return {c.value: c for c in reader.constants_of_file(package / "launcher.py", "launch")}


def test_conditions_say_where_they_stand_and_about_which_size(found: dict[int, Constant]) -> None:
    assert str(found[4096].place) == "launcher.py:14 `if n // 1024 > 4`"
    assert found[4096].kind == CONDITION and found[4096].distance == 0 and "n" in found[4096].names
    assert str(found[2000].place) == "launcher.py:16 `if n > most or x.numel() >= LIMIT`"  # a local name
    assert found[10**5].counts_elements and not found[2000].counts_elements  # a value of another module
    assert {2048, 3072} <= found.keys() and found[3072].place.file.name == "helpers.py"


def test_bytes_are_elements_of_both_sizes(found: dict[int, Constant]) -> None:
    assert {6000, 3000, 1500} <= found.keys()


def test_limits_tiles_and_what_is_given_by_name(found: dict[int, Constant]) -> None:
    assert (found[9000].kind, found[33].kind, found[48].kind) == (LIMIT, TILE, TILE)
    assert found[256].kind == PARAMETER and found[512].kind == TILE and found[512].distance == 1  # of the Triton kernel
    assert {96, 160, 128} <= found.keys()


def test_a_name_that_is_given_at_the_launch_counts_in_the_kernel(found: dict[int, Constant]) -> None:
    assert str(found[1280].place) == "launcher.py:29 `if n > 5 * BLOCK`"


def test_what_is_no_size_or_not_reached_is_left_out(found: dict[int, Constant]) -> None:
    # a docstring, an index, a number of warps, another function, a comment and a string of CUDA C++; too small
    assert not found.keys() & {777, 123, 72, 55555, 11111, 22222, 4 - 1, 0, 1}


def test_cuda_text_is_read_like_python(found: dict[int, Constant]) -> None:
    assert found[5000].kind == CONDITION
    assert str(found[5000].place) == "plans.cu:7 `if (static_cast<int64_t>(n) > 5000u && n != 0x700)`"
    assert {0x700, 7000, 666} <= found.keys()
    assert found[8 * 64].value == 512  # 8 * WIDTH, of GROUP = 128 that the launcher gives
    assert found[1700].place.file.name == "held.cuh" and found[1700].distance > found[5000].distance


def test_the_nearest_and_most_specific_come_first(package: Path) -> None:
    order = [c.value for c in reader.constants_of_file(package / "launcher.py", "launch")]
    assert order.index(2000) < order.index(9000) < order.index(33) < order.index(7000)
    assert len(order) == len(set(order))


def test_nothing_is_imported(package: Path) -> None:
    """The launcher imports what does not exist."""
    assert reader.constants_of_file(package / "launcher.py", "launch")
    assert reader.constants_of_file(package / "launcher.py", "no_such_function") == []
    (package / "broken.py").write_text("def f(:")
    assert reader.constants_of_file(package / "broken.py", "f") == []


def test_kernels_as_text_in_a_python_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        'TEXT = """\n__global__ void k(int n) {\n  if (n > 4321) return;\n}"""\n\n\ndef f(x):\n    return run(TEXT, x)\n'
    )
    (one,) = reader.constants_of_file(tmp_path / "mine.py", "f")
    assert str(one.place) == "mine.py:3 `if (n > 4321) return;`"


def test_mutual_definitions_end(tmp_path: Path) -> None:
    (tmp_path / "mine.cu").write_text(
        "#define A (B + 1)\n#define B (A + 1)\nvoid f(int n) { if (n > A + 5000) return; }\n"
    )
    (tmp_path / "mine.py").write_text("A = B\nB = A\n\n\ndef f(n):\n    return n > A and Source(__file__)\n")
    assert all(c.value != 5000 or c.kind != PARAMETER for c in reader.constants_of_file(tmp_path / "mine.py", "f"))


@pytest.mark.parametrize(
    ("backend", "op", "variant", "value", "file"),
    [
        ("cuda", "softmax", "registers", 32768, "rows.py"),
        ("cuda", "softmax", "naive", 256, "__init__.py"),
        ("triton", "softmax", "resident", 8192, "row_plan.py"),
        ("triton", "matmul", "by_shape", 2048, "_tiles.py"),
        ("cuda", "attention", "wgmma", 1024, "__init__.py"),
        ("cuda", "reduce_max", "split", None, ""),  # an object, and no function
        ("triton", "quantize_rowwise", "resident", None, ""),  # a partial
    ],
)
def test_our_own_variants(backend: str, op: str, variant: str, value: int | None, file: str) -> None:
    pytest.importorskip("triton")
    fn = registered.variants(backend, op)[variant].fn
    found = {c.value: c for c in reader.constants(fn, registered.folder(backend))}
    assert found and (value is None or found[value].place.file.name == file)
    assert all(c.place.line and c.place.code for c in found.values())
