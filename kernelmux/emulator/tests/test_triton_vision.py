"""Convolution and pooling in Triton on both targets, against float64."""

import pytest
import torch

pytest.importorskip("triton")
import triton

from kernelmux.emulator.tests.near import FP32, TF32, assert_near
from kernelmux.emulator.tests.triton_kernels import vision as kernels

F = torch.nn.functional
pytestmark = pytest.mark.usefixtures("arch")


@pytest.mark.parametrize(
    ("dtype", "unit", "stride", "padding"), [(torch.float16, FP32, 1, 1), (torch.float32, TF32 / 4, 2, 0)], ids=str
)
def test_conv2d(dtype: torch.dtype, unit: float, stride: int, padding: int) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(2, 5, 11, 13).to(dtype), torch.randn(20, 5, 3, 3).to(dtype)
    expected = F.conv2d(x.double(), w.double(), stride=stride, padding=padding)
    p, q = expected.shape[2:]
    y = torch.empty(expected.shape, dtype=dtype)
    kernels.conv2d_kernel[(triton.cdiv(p * q, 64), 1, 2)](
        x, w, y, 5, 11, 13, 20, p, q, stride, padding, R=3, S=3, BLOCK_M=64, BLOCK_N=32, BLOCK_K=32
    )
    assert_near(y, expected, 16, F.conv2d(x.double().abs(), w.double().abs(), stride=stride, padding=padding), unit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_max_pool2d(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 15, 14).to(dtype)
    expected, where = F.max_pool2d(x.float(), 3, 2, 1, return_indices=True)
    y, index = torch.empty(expected.shape, dtype=dtype), torch.empty(expected.shape, dtype=torch.int64)
    p, q = expected.shape[2:]
    kernels.max_pool2d_kernel[(6, 1)](x, y, index, 15, 14, p, q, 2, 1, SIZE=3, BLOCK=64, num_warps=2)
    assert torch.equal(y, expected.to(dtype)) and torch.equal(index, where)
