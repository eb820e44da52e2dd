"""mma.sync, ldmatrix, stmatrix and wmma against numpy."""

from typing import Any

import numpy as np
import pytest
import torch

from kernelmux.emulator import EmulatorError, checks, compile_ptx, load, nvrtc
from kernelmux.emulator.tests.shared_operands import TORCH, random_matrix

pytestmark = pytest.mark.skipif(nvrtc.unavailable() is not None, reason=str(nvrtc.unavailable()))

WARPS, BLOCKS = 2, 2
COUNT = WARPS * BLOCKS


def launch(source: str, name: str, *arguments: Any, threads: int = 32 * WARPS, blocks: int = BLOCKS) -> None:
    with checks("full"):
        load(compile_ptx(source, arch="sm_90a")).kernel(name).launch((blocks, 1, 1), (threads, 1, 1), arguments)


def as_double(x: torch.Tensor) -> np.ndarray:
    return x.to(torch.float32).double().numpy()


# --- mma.sync -------------------------------------------------------------------------------------------------


def registers(letter: str, count: int, constraint: str) -> str:
    return ", ".join(f'"{constraint}"({letter}[{i}])' for i in range(count))


def placeholders(first: int, count: int) -> str:
    return "{" + ", ".join(f"%{first + i}" for i in range(count)) + "}"


def mma_source(opcode: str, words_a: int, words_b: int, words_c: int, c_type: str) -> str:
    """A kernel in which each warp multiplies its A [16, K] and (transposed) B [8, K], read as 32-bit words."""
    constraint = "f" if c_type == "float" else "r"
    d_at, a_at, b_at = 0, words_c, words_c + words_a
    c_at = b_at + words_b
    row_c = "(r / 2) * 8 + g) * 8 + 2 * t + r % 2" if words_c == 4 else "r * 8 + g) * 4 + t"
    size_c = 128 if words_c == 4 else 64
    return f"""
extern "C" __global__ void product(const unsigned* A, const unsigned* B, const {c_type}* C, {c_type}* D) {{
  int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, warp = blockIdx.x * blockDim.x / 32 + threadIdx.x / 32;
  int width = {words_b} * 4;  // words of a row of A and B
  unsigned a[{words_a}], b[{words_b}];
  {c_type} c[{words_c}], d[{words_c}];
  for (int r = 0; r < {words_a}; r++) a[r] = A[(warp * 16 + g + r % 2 * 8) * width + r / 2 * 4 + t];
  for (int r = 0; r < {words_b}; r++) b[r] = B[(warp * 8 + g) * width + r * 4 + t];
  for (int r = 0; r < {words_c}; r++) c[r] = C[warp * {size_c} + ({row_c}];
  asm volatile("{opcode} {placeholders(d_at, words_c)}, {placeholders(a_at, words_a)}, "
               "{placeholders(b_at, words_b)}, {placeholders(c_at, words_c)};"
               : {registers("d", words_c, "=" + constraint)}
               : {registers("a", words_a, "r")}, {registers("b", words_b, "r")}, {registers("c", words_c, constraint)});
  for (int r = 0; r < {words_c}; r++) D[warp * {size_c} + ({row_c}] = d[r];
}}"""


MMA = [
    ("m16n8k8", "f16", "f16", "f32"),
    ("m16n8k16", "f16", "f16", "f32"),
    ("m16n8k16", "f16", "f16", "f16"),
    ("m16n8k8", "bf16", "bf16", "f32"),
    ("m16n8k16", "bf16", "bf16", "f32"),
    ("m16n8k4", "tf32", "tf32", "f32"),
    ("m16n8k8", "tf32", "tf32", "f32"),
    ("m16n8k32", "e4m3", "e4m3", "f32"),
    ("m16n8k32", "e5m2", "e4m3", "f32"),
    ("m16n8k16", "s8", "s8", "s32"),
    ("m16n8k32", "s8", "u8", "s32"),
    ("m16n8k32", "u8", "u8", "s32"),
]


@pytest.mark.parametrize(("shape", "kind_a", "kind_b", "kind_c"), MMA, ids=["-".join(case) for case in MMA])
def test_mma_sync(shape: str, kind_a: str, kind_b: str, kind_c: str) -> None:
    torch.manual_seed(0)
    k = int(shape.split("k")[1])
    a, b = random_matrix(kind_a, COUNT, 16, k), random_matrix(kind_b, COUNT, 8, k)
    dtype_c = {"f32": torch.float32, "f16": torch.float16, "s32": torch.int32}[kind_c]
    c = torch.randint(-9, 9, (COUNT, 16, 8)).to(dtype_c)
    d = torch.zeros_like(c)
    words_b = k * a.element_size() // 16
    c_type = {"f32": "float", "f16": "unsigned", "s32": "int"}[kind_c]
    opcode = f"mma.sync.aligned.{shape}.row.col.{kind_c}.{kind_a}.{kind_b}.{kind_c}"
    source = mma_source(opcode, 2 * words_b, words_b, 2 if kind_c == "f16" else 4, c_type)
    launch(source, "product", a.view(torch.int32), b.view(torch.int32), c, d)
    expected = as_double(a) @ as_double(b).swapaxes(1, 2) + c.double().numpy()
    np.testing.assert_array_equal(d.double().numpy(), expected)


def test_tf32_cuts_what_its_mantissa_has_no_room_for() -> None:
    a, b = torch.full((COUNT, 16, 8), 1 + 2**-12), torch.ones(COUNT, 8, 8)
    c, d = torch.zeros(COUNT, 16, 8), torch.zeros(COUNT, 16, 8)
    source = mma_source("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", 4, 2, 4, "float")
    launch(source, "product", a.view(torch.int32), b.view(torch.int32), c, d)
    assert (d == 8).all()


@pytest.mark.parametrize(("suffix", "expected"), [(".satfinite", 2**31 - 1), ("", -(2**31) + 31)])
def test_integer_sums_wrap_unless_told_to_saturate(suffix: str, expected: int) -> None:
    a = torch.ones(COUNT, 16, 32, dtype=torch.int8)
    b = torch.ones(COUNT, 8, 32, dtype=torch.int8)
    c, d = torch.full((COUNT, 16, 8), 2**31 - 1, dtype=torch.int32), torch.zeros(COUNT, 16, 8, dtype=torch.int32)
    source = mma_source(f"mma.sync.aligned.m16n8k32.row.col{suffix}.s32.s8.s8.s32", 4, 2, 4, "int")
    launch(source, "product", a.view(torch.int32), b.view(torch.int32), c, d)
    assert (d == expected).all()


# --- ldmatrix, stmatrix ---------------------------------------------------------------------------------------

LDMATRIX = """
extern "C" __global__ void matrices(const unsigned* x, unsigned* y) {{
  __shared__ alignas(16) unsigned tile[{count} * 8 * 4];
  int lane = threadIdx.x;
  for (int i = lane; i < {count} * 32; i += 32) tile[i] = x[i];
  __syncthreads();
  unsigned r[{count}], p = (unsigned)__cvta_generic_to_shared(tile + lane % ({count} * 8) * 4);
  asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {holders}, [%{count}];" : {outputs} : "r"(p));
  for (int i = 0; i < {count}; i++) y[i * 32 + lane] = r[i];
}}
extern "C" __global__ void stored(const unsigned* x, unsigned* y) {{
  __shared__ alignas(16) unsigned tile[{count} * 8 * 4];
  int lane = threadIdx.x;
  unsigned r[{count}], p = (unsigned)__cvta_generic_to_shared(tile + lane % ({count} * 8) * 4);
  for (int i = 0; i < {count}; i++) r[i] = x[i * 32 + lane];
  asm volatile("stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%0], {later};" :: "r"(p), {inputs} : "memory");
  __syncthreads();
  for (int i = lane; i < {count} * 32; i += 32) y[i] = tile[i];
}}"""


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("name", ["matrices", "stored"])
def test_ldmatrix_and_stmatrix(name: str, count: int, trans: str) -> None:
    source = LDMATRIX.format(
        count=count,
        trans=trans,
        holders=placeholders(0, count),
        later=placeholders(1, count),
        outputs=registers("r", count, "=r"),
        inputs=registers("r", count, "r"),
    )
    x = torch.arange(count * 64, dtype=torch.int16).reshape(count, 8, 8)
    y = torch.zeros_like(x)
    launch(source, name, x, y, threads=32, blocks=1)
    assert torch.equal(y, x.transpose(1, 2) if trans else x)


def test_ldmatrix_wants_rows_aligned_to_16_bytes() -> None:
    source = LDMATRIX.replace("lane % ({count} * 8) * 4", "lane % 7 * 4 + 1").format(
        count=1, trans="", holders="{%0}", later="{%1}", outputs='"=r"(r[0])', inputs='"r"(r[0])'
    )
    x = torch.zeros(64, dtype=torch.int16)
    with pytest.raises(EmulatorError, match=r"kernel\.cu:8") as raised:
        launch(source, "matrices", x, x.clone(), threads=32, blocks=1)
    assert raised.value.kind == "misaligned"


# --- wmma -----------------------------------------------------------------------------------------------------

WMMA = """
#include <mma.h>
#include <cuda_bf16.h>
using namespace nvcuda;
typedef MULTIPLICAND In;
typedef ACCUMULATOR Sum;
typedef STORED Memory;
extern "C" __global__ void product(const Memory* A, const Memory* B, const Sum* C, Sum* D) {
  __shared__ alignas(32) Sum tile[WARPS][M * N];
  int warp = threadIdx.x / 32, all = blockIdx.x * WARPS + warp;
  wmma::fragment<wmma::matrix_a, M, N, K, In, wmma::LAYOUT_A> a;
  wmma::fragment<wmma::matrix_b, M, N, K, In, wmma::LAYOUT_B> b;
  wmma::fragment<wmma::accumulator, M, N, K, Sum> c;
  wmma::load_matrix_sync(a, A + all * M * K, LDA);
  wmma::load_matrix_sync(b, B + all * K * N, LDB);
  wmma::load_matrix_sync(c, C + all * M * N, N, wmma::mem_row_major);
  for (int i = 0; i < c.num_elements; i++) c.x[i] = c.x[i] * (Sum)2.0f;
  wmma::mma_sync(c, a, b, c);
  wmma::store_matrix_sync(tile[warp], c, N, wmma::mem_row_major);
  __syncwarp();
  for (int i = threadIdx.x % 32; i < M * N; i += 32) D[all * M * N + i] = tile[warp][i];
}"""
needs_mma_header = pytest.mark.skipif(
    nvrtc.unavailable() is not None or not any((f / "crt" / "mma.h").is_file() for f in nvrtc._headers()),
    reason="mma.h is not installed",
)
SHAPES = [(16, 16, 16), (32, 8, 16), (8, 32, 16)]
KINDS = {
    "f16": ("__half", "__half", "float"),
    "f16-f16": ("__half", "__half", "__half"),
    "bf16": ("__nv_bfloat16", "__nv_bfloat16", "float"),
    "s8": ("signed char", "signed char", "int"),
}


def run_wmma(kind: str, shape: tuple[int, int, int], layouts: tuple[str, str], types: tuple[str, str, str]) -> None:
    torch.manual_seed(0)
    m, n, k = shape
    dtype = TORCH[kind.split("-")[0]]
    a, b = torch.randint(-3, 4, (COUNT, m, k)).to(dtype), torch.randint(-3, 4, (COUNT, k, n)).to(dtype)
    dtype_c = {"float": torch.float32, "__half": torch.half, "int": torch.int32}[types[2]]
    c = torch.randint(-9, 9, (COUNT, m, n)).to(dtype_c)
    d = torch.zeros_like(c)
    in_memory = [x if layout == "row" else x.transpose(1, 2) for x, layout in zip((a, b), layouts, strict=True)]
    defines = dict(
        M=m,
        N=n,
        K=k,
        WARPS=WARPS,
        MULTIPLICAND=types[0],
        STORED=types[1],
        ACCUMULATOR=types[2],
        LAYOUT_A=f"{layouts[0]}_major",
        LAYOUT_B=f"{layouts[1]}_major",
        LDA=k if layouts[0] == "row" else m,
        LDB=n if layouts[1] == "row" else k,
    )
    head = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    source = WMMA.replace("using namespace", head + "using namespace")
    launch(source, "product", *(x.contiguous() for x in in_memory), c, d)
    expected = as_double(a) @ as_double(b) + 2 * c.double().numpy()
    np.testing.assert_array_equal(d.double().numpy(), expected)


@needs_mma_header
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_wmma_shapes(kind: str, shape: tuple[int, int, int]) -> None:
    run_wmma(kind, shape, ("row", "col"), KINDS[kind])


@needs_mma_header
@pytest.mark.parametrize("layouts", [("row", "row"), ("col", "row"), ("col", "col")], ids=str)
def test_wmma_layouts(layouts: tuple[str, str]) -> None:
    run_wmma("bf16", (16, 16, 16), layouts, KINDS["bf16"])


@needs_mma_header
def test_wmma_tf32() -> None:
    run_wmma("tf32", (16, 16, 8), ("row", "col"), ("wmma::precision::tf32", "float", "float"))
