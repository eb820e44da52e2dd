"""Sorts, scans and rearrangements of tiles in Triton on both targets."""

import inspect

import pytest
import torch

pytest.importorskip("triton")
import triton.language as tl

from kernelmux.emulator.tests.near import FP32, assert_near
from kernelmux.emulator.tests.triton_kernels import shapes as kernels

pytestmark = pytest.mark.usefixtures("arch")

UNITS = {torch.float32: FP32, torch.float64: 2.0**-53, torch.int32: 0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_sort_and_topk(dtype: torch.dtype) -> None:
    x = torch.randint(-100, 100, (8, 32)).to(dtype)
    up, down, top = torch.empty_like(x), torch.empty_like(x), torch.empty(8, 8, dtype=dtype)
    kernels.sort_kernel[(1,)](x, up, down, top, M=8, N=32, K=8)
    assert torch.equal(up, x.sort(1).values) and torch.equal(down, x.sort(1, descending=True).values)
    assert torch.equal(top, down[:, :8])


def test_flip() -> None:
    x = torch.randn(16, 32)
    rows, columns = torch.empty_like(x), torch.empty_like(x)
    kernels.flip_kernel[(1,)](x, rows, columns, M=16, N=32)
    assert torch.equal(rows, x.flip(0)) and torch.equal(columns, x.flip(1))


@pytest.mark.parametrize(
    ("dtype", "axis", "reverse"),
    [(torch.float32, 0, False), (torch.float32, 1, True), (torch.int32, 0, True), (torch.float64, 1, False)],
    ids=str,
)
def test_scans(dtype: torch.dtype, axis: int, reverse: bool) -> None:
    torch.manual_seed(0)
    x = (torch.randint(-1, 2, (16, 32)) if dtype == torch.int32 else torch.rand(16, 32) * 2 - 1).to(dtype)
    out = torch.empty(3, 16, 32, dtype=dtype)
    kernels.scan_kernel[(1,)](x, out, M=16, N=32, AXIS=axis, REVERSE=reverse, num_warps=2)
    exact = x.double().flip(axis) if reverse else x.double()
    y, rows = torch.ones_like(exact), exact.unbind(axis)
    for i in range(1, len(rows)):
        y.select(axis, i).copy_(y.select(axis, i - 1) * rows[i] + 1)
    for got, expected in zip(out, (exact.cumsum(axis), exact.cumprod(axis), y), strict=True):
        got = (got.flip(axis) if reverse else got).double()
        assert_near(got, expected, 32, exact.abs().cumsum(axis) + 1, UNITS[dtype])


def test_histogram() -> None:
    x = torch.randint(0, 32, (500,), dtype=torch.int32)
    out = torch.empty(32, dtype=torch.int32)
    kernels.histogram_kernel[(1,)](x, out, 500, BINS=32, BLOCK=512)
    assert torch.equal(out.long(), torch.bincount(x, minlength=32))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("num_warps", [1, 4])
def test_gather(axis: int, num_warps: int) -> None:
    x, out = torch.randn(16, 32), torch.empty(16, 32)
    index = torch.randint(0, x.shape[axis], (16, 32), dtype=torch.int32)
    kernels.gather_kernel[(1,)](x, index, out, M=16, N=32, AXIS=axis, num_warps=num_warps)
    assert torch.equal(out, x.gather(axis, index.long()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.int8], ids=str)
def test_rearrangements(dtype: torch.dtype) -> None:
    m, n = 16, 32
    size = m * n
    x, y = (torch.randint(-100, 100, (m, n)).to(dtype) for _ in range(2))
    out = torch.empty(7 * size, dtype=dtype)
    kernels.rearrange_kernel[(1,)](x, y, out, M=m, N=n)
    joined = torch.stack((x, y), -1)
    assert torch.equal(out[: 2 * size], joined.flatten())
    assert torch.equal(out[2 * size : 4 * size], joined.permute(2, 1, 0).flatten())
    assert torch.equal(out[4 * size : 5 * size], torch.cat((x[:, ::2].flatten(), x[:, 1::2].flatten())))
    assert torch.equal(out[5 * size : 6 * size], x.reshape(2, m // 2, n).permute(1, 2, 0).flatten())
    assert torch.equal(out[6 * size :].reshape(m, n), x[1].expand(m, n))


def test_cat() -> None:
    x, y, out = torch.randn(256), torch.randn(256), torch.empty(512)
    ordered = "dim" in inspect.signature(tl.cat).parameters  # before Triton 3.7 the order is the compiler's choice
    kernels.cat_kernel[(1,)](x, y, out, REORDER=not ordered, N=256)
    expected = torch.cat((x, y))
    assert torch.equal(out, expected) if ordered else torch.equal(out.sort().values, expected.sort().values)


def test_four_dimensions() -> None:
    x = torch.randn(4, 2, 8, 16)
    out = torch.empty(8, 4, 16, 2)
    kernels.permute4_kernel[(1,)](x, out, A=4, B=2, C=8, D=16)
    assert torch.equal(out, x.permute(2, 0, 3, 1))


def test_a_function_of_elements_with_two_results() -> None:
    x, y, out = torch.randn(256), torch.randn(256), torch.empty(2, 256)
    kernels.pairs_kernel[(1,)](x, y, out, N=256)
    assert torch.equal(out, torch.stack((torch.maximum(x, y), torch.minimum(x, y))))
