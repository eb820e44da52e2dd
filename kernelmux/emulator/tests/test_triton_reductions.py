"""Reductions and data movement in Triton on both targets, against float64."""

import pytest
import torch

pytest.importorskip("triton")
from kernelmux.emulator import EmulatorError, checks
from kernelmux.emulator.tests.near import BF16, FP16, FP32, assert_near
from kernelmux.emulator.tests.triton_kernels import reductions as kernels

pytestmark = pytest.mark.usefixtures("arch")

M, N = 32, 64
UNITS = {torch.float32: FP32, torch.float16: FP16, torch.bfloat16: BF16}


@pytest.mark.parametrize(
    ("dtype", "axis"),
    [(torch.float32, 0), (torch.float16, 1), (torch.bfloat16, 0), (torch.int64, 1), (torch.float64, 0)],
    ids=str,
)
def test_reductions_over_an_axis(dtype: torch.dtype, axis: int) -> None:
    torch.manual_seed(0)
    x = torch.randint(-40, 40, (M, N)).to(dtype)  # equal values in every row and column: ties
    left = N if axis == 0 else M
    out, index = torch.empty(4, left, dtype=dtype), torch.empty(4, left, dtype=torch.int32)
    kernels.reductions_kernel[(1,)](x, out, index, M=M, N=N, AXIS=axis, num_warps=4)
    assert_near(out[0].double(), x.double().sum(axis), 8, x.double().abs().sum(axis), UNITS.get(dtype, 0))
    assert torch.equal(out[1], x.amax(axis)) and torch.equal(out[2], x.amin(axis))
    assert torch.equal(out[3].abs(), x.abs().amax(axis))
    first_top, first_low = x.double().numpy().argmax(axis), x.double().numpy().argmin(axis)
    assert (index[0].numpy() == first_top).all() and (index[1].numpy() == first_low).all()
    assert torch.equal(index[2], index[0]) and torch.equal(index[3], index[1])


def test_any_of_equal_maxima() -> None:
    """Without tie_break_left threads may disagree on equals; then they write different indices to one place."""
    x, index = torch.randn(M, N), torch.empty(M, dtype=torch.int32)
    kernels.any_argmax_kernel[(1,)](x, index, M=M, N=N)
    assert torch.equal(index.long(), x.argmax(1))
    equal = torch.zeros(M, N)
    with pytest.raises(EmulatorError, match="race: two threads write different values"):
        kernels.any_argmax_kernel[(1,)](equal, index, M=M, N=N)
    with checks("fast"):
        kernels.any_argmax_kernel[(1,)](equal, index, M=M, N=N)
    assert ((index >= 0) & (index < N)).all()


@pytest.mark.parametrize(
    ("dtype", "num_warps"), [(torch.int8, 1), (torch.int16, 8), (torch.int32, 2), (torch.int64, 4)], ids=str
)
def test_bit_reductions(dtype: torch.dtype, num_warps: int) -> None:
    x = torch.randint(-100, 100, (256,)).to(dtype)
    out = torch.empty(3, dtype=torch.int64)
    kernels.bits_kernel[(1,)](x, out, N=256, num_warps=num_warps)
    xor, any_bit = 0, 0
    for value in x.tolist():
        xor, any_bit = xor ^ value, any_bit | value
    assert out.tolist() == [xor, any_bit, int(x.sum())]


def test_a_reduction_of_three_tensors() -> None:
    x = torch.randn(512) + 3
    out = torch.empty(2)
    kernels.moments_kernel[(1,)](x, out, N=512)
    assert_near(out, [x.double().mean(), x.double().var(correction=0)], 16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sums_of_strided_rows_in_parts(dtype: torch.dtype) -> None:
    x = torch.randn(5, 600).to(dtype)[:, ::2]
    out = torch.zeros(5)
    kernels.sum_rows_kernel[(5, 3)](x[:, :300], out, x.stride(0), 300, BLOCK=128)
    flat = torch.as_strided(x, (5, 300), (x.stride(0), 1)).double()  # the kernel reads neighbours
    assert_near(out, flat.sum(1), 8, flat.abs().sum(1))


@pytest.mark.parametrize(
    ("dtype", "trans"),
    [(torch.float32, True), (torch.float16, False), (torch.int8, True), (torch.int64, False)],
    ids=str,
)
def test_transpose(dtype: torch.dtype, trans: bool) -> None:
    x = torch.randint(-100, 100, (70, 45)).to(dtype)
    out = torch.empty(45, 70, dtype=dtype)
    kernels.transpose_kernel[(3, 2)](x, out, 70, 45, BLOCK_M=32, BLOCK_N=32, TRANS=trans)
    assert torch.equal(out, x.t())


def test_copy_column() -> None:
    x, out = torch.randn(300, 7), torch.empty(300)
    kernels.copy_column_kernel[(3,)](x, out, 300, 7, 4, BLOCK=128)
    assert torch.equal(out, x[:, 4])
