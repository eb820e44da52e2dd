"""Tensor descriptors in Triton: TMA from sm_90 on, loads and stores on sm_80."""

import inspect
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from kernelmux.emulator.tests.triton_kernels import descriptors as kernels
from kernelmux.emulator.tests.triton_version import NAME

pytestmark = pytest.mark.usefixtures("arch")

ROUNDS = "round_f32_to_tf32" in inspect.signature(TensorDescriptor).parameters
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int32]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_made_by_the_host(arch: str, dtype: torch.dtype) -> None:
    x = torch.randint(-60, 60, (50, 80)).to(dtype)[:, :72] if dtype != torch.int8 else torch.randint(-60, 60, (50, 80))
    x = x.to(dtype)
    y = torch.zeros_like(x)
    block = [32, 32]
    compiled = kernels.tile_kernel[(2, triton.cdiv(x.shape[1], 32))](
        *(TensorDescriptor.from_tensor(t, block) for t in (x, y)), BLOCK_M=32, BLOCK_N=32
    )
    assert ("cp.async.bulk.tensor" in compiled.asm["ptx"]) == (arch != "sm_80")
    assert torch.equal(y, x * 2)


@pytest.mark.parametrize("fill", ["zero", "nan"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_made_by_the_kernel(arch: str, dtype: torch.dtype, fill: str) -> None:
    x, y = torch.randn(40, 72).to(dtype), torch.empty(64, 96, dtype=dtype)
    compiled = kernels.made_here_kernel[(2, 3)](x, y, 40, 72, FILL=fill, BLOCK_M=32, BLOCK_N=32)
    assert ("tensormap.replace" in compiled.asm["ptx"]) == (arch != "sm_80")
    assert (compiled.metadata.global_scratch_size > 0) == (arch != "sm_80")  # where the descriptor lies
    outside = torch.nan if fill == "nan" else 0.0
    expected = torch.full((64, 96), outside, dtype=dtype)
    expected[8:48, :72] = x
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("fill", ["zero", "nan"])
def test_fill_of_the_host(fill: str) -> None:
    """Elements outside are filled; the product with 2 of NaN is NaN, and is not stored."""
    x, y = torch.randn(40, 32), torch.empty(64, 32)
    source = TensorDescriptor(x, [40, 32], [32, 1], [32, 32], padding=fill)
    kernels.tile_kernel[(2, 1)](source, TensorDescriptor.from_tensor(y, [32, 32]), BLOCK_M=32, BLOCK_N=32)
    assert torch.equal(y[:40], x * 2)
    assert (y[40:].isnan() if fill == "nan" else y[40:] == 0).all()


@pytest.mark.skipif(not ROUNDS, reason=f"{NAME} has no descriptors that round to tf32")
def test_rounding_of_the_host() -> None:
    x, y = torch.randn(32, 32), torch.empty(32, 32)
    x[0, :4] = torch.tensor([1 + 2**-11, 1 + 3 * 2**-11, torch.inf, torch.nan])
    source = TensorDescriptor.from_tensor(x, [32, 32], round_f32_to_tf32=True)
    kernels.tile_kernel[(1, 1)](source, TensorDescriptor.from_tensor(y, [32, 32]), BLOCK_M=32, BLOCK_N=32)
    digits, exponent = torch.frexp(x)
    near = torch.ldexp(torch.round(digits * 2**11) / 2**11, exponent)  # round: half to even
    torch.testing.assert_close(y, torch.where(x.isfinite(), near, x) * 2, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_ranks(rank: int) -> None:
    shape = (3, 4, 5, 6, 32)[-rank:]
    block = (2, 2, 4, 4, 16)[-rank:]
    x = torch.randn(shape)
    y = torch.zeros_like(x)
    kernels.deep_kernel[(1,)](*(TensorDescriptor.from_tensor(t, list(block)) for t in (x, y)), RANK=rank)
    expected = torch.zeros_like(x)
    moved = x[tuple(slice(1, None) for _ in shape[:-1])]
    part = tuple(slice(0, min(b, m)) for b, m in zip(block, moved.shape, strict=True))
    expected[part] = moved[part]
    assert torch.equal(y, expected)


def test_one_dimension_made_by_the_kernel() -> None:
    x, y = torch.randn(200), torch.zeros(200)
    kernels.line_kernel[(4,)](x, y, 200, BLOCK=64)
    assert torch.equal(y, x + 1)


FOLDS: dict[str, Any] = {
    **{"add": np.add, "min": np.minimum, "max": np.maximum},
    **{"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor},
}


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(kind, torch.int32) for kind in FOLDS]
    + [("add", torch.float32), ("add", torch.float16), ("min", torch.float16), ("max", torch.bfloat16)],
    ids=str,
)
def test_reductions_into_memory(arch: str, kind: str, dtype: torch.dtype) -> None:
    if arch == "sm_80" and kind != "add" and dtype.itemsize == 2:
        pytest.skip("Triton has minima and maxima of 16-bit floats by TMA only")
    torch.manual_seed(0)
    x, out = (torch.randint(-50, 50, shape).to(dtype) for shape in ((3, 16, 32), (16, 32)))
    expected = out.clone()
    for tile in x[:, :12]:
        joined = FOLDS[kind](expected[4:].float().numpy(), tile.float().numpy()) if dtype.is_floating_point else None
        joined = FOLDS[kind](expected[4:].numpy(), tile.numpy()) if joined is None else joined
        expected[4:] = torch.from_numpy(joined).to(dtype)
    kernels.reduce_kernel[(3,)](TensorDescriptor.from_tensor(out, [16, 32]), x, KIND=kind, M=16, N=32)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_gather_and_scatter(arch: str, dtype: torch.dtype) -> None:
    if arch == "sm_90":
        pytest.skip("Triton gathers and scatters by TMA on sm_100 and by loads on sm_80; it cannot on sm_90")
    if arch == "sm_100":
        pytest.skip("tiles that TMA gathers or scatters (tile::gather4) are not emulated")
    x, rows = torch.randn(64, 48).to(dtype), torch.randperm(64, dtype=torch.int32)[:16]
    out = torch.empty(16, 32, dtype=dtype)
    kernels.gather_kernel[(1,)](TensorDescriptor.from_tensor(x, [1, 32]), rows, out, BLOCK_M=16, BLOCK_N=32)
    assert torch.equal(out, x[rows.long(), 8:40])
    spread = torch.zeros_like(x)
    kernels.scatter_kernel[(1,)](TensorDescriptor.from_tensor(spread, [1, 32]), rows, out, BLOCK_M=16, BLOCK_N=32)
    expected = torch.zeros_like(x)
    expected[rows.long(), 8:40] = out
    assert torch.equal(spread, expected)
