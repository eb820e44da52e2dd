"""wmma of float64, of four bits and of single bits, through the classes of mma.h."""

import numpy as np
import pytest
import torch

from kernelmux.emulator import checks, compile_ptx, load, nvrtc

pytestmark = pytest.mark.skipif(
    nvrtc.unavailable() is not None or not any((f / "crt" / "mma.h").is_file() for f in nvrtc._headers()),
    reason="mma.h is not installed",
)
SOURCE = """
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void product(const MEMORY* A, const MEMORY* B, const SUM* C, SUM* D, int lda, int ldb) {
  __shared__ alignas(32) SUM tile[64];
  wmma::fragment<wmma::matrix_a, 8, 8, K, IN, wmma::LAYOUT_A> a;
  wmma::fragment<wmma::matrix_b, 8, 8, K, IN, wmma::LAYOUT_B> b;
  wmma::fragment<wmma::accumulator, 8, 8, K, SUM> c;
  wmma::load_matrix_sync(a, A, lda);
  wmma::load_matrix_sync(b, B, ldb);
  wmma::load_matrix_sync(c, C, 8, wmma::mem_row_major);
  PRODUCT;
  wmma::store_matrix_sync(tile, c, 8, wmma::mem_col_major);
  __syncwarp();
  for (int i = threadIdx.x; i < 64; i += 32) D[i % 8 * 8 + i / 8] = tile[i];
}"""


def run(words: dict[str, str], a: np.ndarray, b: np.ndarray, c: np.ndarray, lda: int, ldb: int) -> np.ndarray:
    source = SOURCE
    for name, value in words.items():
        source = source.replace(name, value)
    *inputs, d = (torch.from_numpy(x.copy()).clone() for x in (a, b, c, np.zeros_like(c)))  # aligned to 64 bytes
    with checks("full"):
        kernel = load(compile_ptx(source, arch="sm_90a")).kernel("product")
        kernel.launch(1, 32, (*inputs, d, np.int32(lda), np.int32(ldb)))
    result: np.ndarray = d.numpy()
    return result


@pytest.mark.parametrize("layout_a", ["row", "col"])
@pytest.mark.parametrize("layout_b", ["row", "col"])
def test_float64(layout_a: str, layout_b: str) -> None:
    random = np.random.default_rng(0)
    a, b = random.integers(-9, 9, (8, 4)) / 4, random.integers(-9, 9, (4, 8)) / 4
    c = random.integers(-9, 9, (8, 8)).astype(np.float64)
    words = {"MEMORY": "double", "SUM": "double", "K": "4", "IN": "double", "PRODUCT": "wmma::mma_sync(c, a, b, c)"}
    words |= {"LAYOUT_A": f"{layout_a}_major", "LAYOUT_B": f"{layout_b}_major"}
    left, right = (x if layout == "row" else x.T.copy() for x, layout in ((a, layout_a), (b, layout_b)))
    d = run(words, left, right, c, left.shape[1], right.shape[1])
    assert np.array_equal(d, a @ b + c)


def packed(values: np.ndarray, bits: int) -> np.ndarray:
    """Rows of elements, the first in the lowest bits."""
    fields = (values & (1 << bits) - 1).reshape(len(values), -1, 32 // bits)
    return np.ascontiguousarray((fields << bits * np.arange(32 // bits)).sum(-1), np.uint32)


INTEGER = {"MEMORY": "unsigned", "SUM": "int", "LAYOUT_A": "row_major", "LAYOUT_B": "col_major"}


@pytest.mark.parametrize("kind", ["s4", "u4"])
def test_four_bits(kind: str) -> None:
    random, low = np.random.default_rng(1), -8 if kind == "s4" else 0
    a, b = random.integers(low, low + 16, (8, 64)), random.integers(low, low + 16, (8, 64))
    c = random.integers(-99, 99, (8, 8)).astype(np.int32)
    words = {"K": "32", "IN": f"wmma::experimental::precision::{kind}", "PRODUCT": "wmma::mma_sync(c, a, b, c)"}
    d = run(INTEGER | words, packed(a, 4), packed(b, 4), c, 64, 64)
    assert np.array_equal(d, a[:, :32] @ b[:, :32].T + c)


@pytest.mark.parametrize("operation", ["XOR", "AND"])
def test_single_bits(operation: str) -> None:
    random = np.random.default_rng(2)
    a, b = random.integers(0, 2, (8, 256)), random.integers(0, 2, (8, 256))
    c = random.integers(-99, 99, (8, 8)).astype(np.int32)
    words = {"IN": "wmma::experimental::precision::b1", "SUM": "int", "K": "128"}
    words["PRODUCT"] = f"wmma::bmma_sync(c, a, b, c, wmma::experimental::bmmaBitOp{operation})"
    d = run({**words, **INTEGER, "PRODUCT": words["PRODUCT"]}, packed(a, 1), packed(b, 1), c, 256, 256)
    left, right = a[:, None, :128], b[None, :, :128]
    assert np.array_equal(d, (left ^ right if operation == "XOR" else left & right).sum(-1) + c)
