"""Atomics in Triton on both targets."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from kernelmux.emulator.tests.near import BF16, FP16, FP32, assert_near
from kernelmux.emulator.tests.triton_kernels import atomics as kernels
from kernelmux.emulator.tests.triton_version import needs

pytestmark = pytest.mark.usefixtures("arch")

N, PLACES = 300, 8
FOLDS = (np.add, np.maximum, np.minimum, np.bitwise_and, np.bitwise_or, np.bitwise_xor)
UNITS = {torch.float32: FP32, torch.float16: FP16, torch.bfloat16: BF16, torch.float64: 2.0**-53}


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = (torch.randn(N) * 50).to(dtype)
    return torch.zeros(PLACES, dtype=dtype), x, torch.randint(0, PLACES, (N,), dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint32, torch.uint64], ids=str)
def test_integers(dtype: torch.dtype) -> None:
    _, x, index = inputs(dtype if dtype.is_signed else torch.int64)
    x = (x if dtype.is_signed else x.abs()).to(dtype)
    out = torch.full((len(FOLDS), PLACES), 5, dtype=dtype)
    expected = out.numpy().copy()
    for row, fold in zip(expected, FOLDS, strict=True):
        fold.at(row, index.numpy(), x.numpy())
    kernels.integers_kernel[(2,)](out, x, index, N, PLACES=PLACES, BLOCK=256)
    assert (out.numpy() == expected).all()


@pytest.mark.parametrize("dtype", UNITS, ids=str)
def test_sums_of_floats(dtype: torch.dtype) -> None:
    out, x, index = inputs(dtype)
    kernels.add_kernel[(2,)](out, x, index, N, BLOCK=256)
    exact, size = (torch.zeros(PLACES).double().index_add(0, index, t) for t in (x.double(), x.double().abs()))
    assert_near(out, exact, N / PLACES, size, UNITS[dtype])


NEIGHBOURS = {
    "sm_80": {torch.float32: "add.f32", torch.float16: "add.noftz.f16x2", torch.bfloat16: "cas.b32"},
    "sm_90": {torch.float32: "add.v4.f32", torch.float16: "add.noftz.v8.f16", torch.bfloat16: "add.noftz.v8.bf16"},
}


@pytest.mark.parametrize("dtype", NEIGHBOURS["sm_80"], ids=str)
def test_sums_of_neighbours(arch: str, dtype: torch.dtype) -> None:
    """In pairs and vectors where the target has them."""
    x, out = torch.randn(1024).to(dtype), torch.ones(1024, dtype=dtype)
    compiled = kernels.add_neighbours_kernel[(2,)](out, x, BLOCK=512, num_warps=1)
    assert NEIGHBOURS["sm_80" if arch == "sm_80" else "sm_90"][dtype] in compiled.asm["ptx"]
    assert torch.equal(out, 1 + x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_extremes_of_floats(dtype: torch.dtype) -> None:
    _, x, index = inputs(dtype)
    out = torch.zeros(2, PLACES, dtype=dtype)
    expected = out.numpy().copy()
    for row, fold in zip(expected, (np.maximum, np.minimum), strict=True):
        fold.at(row, index.numpy(), x.numpy())
    kernels.extremes_kernel[(2,)](out, x, index, N, PLACES=PLACES, BLOCK=256)
    assert (out.numpy() == expected).all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32], ids=str)
def test_old_values_make_a_chain(dtype: torch.dtype) -> None:
    """Exchanges: what was there first, and all that were thrown out, and what is there now, are what came in."""
    out, x, index = inputs(dtype)
    old = torch.empty_like(x)
    kernels.exchange_kernel[(2,)](out, old, x, index, N, BLOCK=256)
    came, left = torch.cat((x, torch.zeros(PLACES, dtype=dtype))), torch.cat((old, out))
    assert torch.equal(came.sort().values, left.sort().values)


@pytest.mark.parametrize(
    "dtype", [torch.int16, torch.int32, torch.int64, torch.float32, torch.float16, torch.bfloat16], ids=str
)
def test_compare_and_swap(dtype: torch.dtype) -> None:
    before = torch.randint(0, 3, (128,)).to(dtype)
    expected, x, out, old = (
        torch.ones_like(before),
        torch.full_like(before, 9),
        before.clone(),
        torch.empty_like(before),
    )
    kernels.swap_kernel[(1,)](out, old, expected, x, BLOCK=128)
    assert torch.equal(old, before) and torch.equal(out, torch.where(before == 1, x, before))


@pytest.mark.parametrize("scope", ["gpu", "sys", "cta"])
def test_tickets(scope: str) -> None:
    count, order = torch.zeros(1, dtype=torch.int32), torch.full((20,), -1, dtype=torch.int32)
    kernels.ticket_kernel[(20,)](count, order, SCOPE=scope)
    assert count.item() == 20 and sorted(order.tolist()) == list(range(20))


def test_programs_that_wait_for_one_another() -> None:
    programs, block = 5, 64
    data, flag = torch.empty(programs, block, dtype=torch.int32), torch.zeros(programs, dtype=torch.int32)
    out = torch.empty(programs, dtype=torch.int32)
    kernels.handover_kernel[(programs,)](data, flag, out, BLOCK=block)
    assert out.tolist() == [i * block * (block - 1) // 2 for i in range(programs)]


@needs((3, 9), "has no tl.atomic_load")
def test_atomic_loads_and_stores() -> None:
    x, out = torch.randint(-100, 100, (128,), dtype=torch.int32), torch.zeros(128, dtype=torch.int32)
    kernels.load_store_kernel[(1,)](x, out, BLOCK=128)
    assert torch.equal(out, x)
