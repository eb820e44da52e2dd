"""Triton programs of several blocks: tiles, sums and products over a cluster of sm_90."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from kernelmux.emulator import checks
from kernelmux.emulator.compilers import triton_driver
from kernelmux.emulator.tests.near import FP32, assert_near
from kernelmux.emulator.tests.triton_kernels import language, matmul, reductions, rows, shapes
from kernelmux.emulator.tests.triton_version import VERSION, needs


@pytest.fixture(autouse=True)
def emulated() -> Iterator[None]:
    before = triton.runtime.driver._active
    triton_driver.activate()
    with checks("full"):
        yield
    triton.runtime.driver._active = before


@pytest.mark.parametrize("num_ctas", [2, 4])
def test_tiles(num_ctas: int) -> None:
    x, y, out = torch.randn(96, 64), torch.randn(96, 64), torch.empty(96, 64)
    compiled = language.tile_add_kernel[(3,)](x, y, out, M=32, N=64, num_ctas=num_ctas)
    assert torch.equal(out, x + y) and "%cluster_ctarank" in compiled.asm["ptx"]


@needs((3, 8), "cannot lay a row over several blocks")
@pytest.mark.parametrize("num_ctas", [2, 4])
def test_sums_over_the_blocks(num_ctas: int) -> None:
    x, out = torch.randn(3, 1000), torch.empty(3, 1000)
    rows.softmax_kernel[(3,)](x, out, 1000, 1000, 1.0, LOG=False, BLOCK=1024, num_ctas=num_ctas)
    assert_near(out, torch.softmax(x.double(), 1), 64)


@pytest.mark.parametrize("axis", [0, 1])
def test_reductions(axis: int) -> None:
    x = torch.randint(-40, 40, (32, 64)).float()
    left = 64 if axis == 0 else 32
    out, index = torch.empty(4, left), torch.empty(4, left, dtype=torch.int32)
    # Triton 3.6 and 3.7 read what no thread has written, and do not use it: full mode reports that.
    with checks("fast" if VERSION < (3, 8) else "full"):
        reductions.reductions_kernel[(1,)](x, out, index, M=32, N=64, AXIS=axis, num_ctas=2)
    assert torch.equal(out[0], x.sum(axis)) and torch.equal(out[1], x.amax(axis))
    assert (index[0].numpy() == x.numpy().argmax(axis)).all()


@needs((3, 8), "cannot change the layout of a tile over several blocks")
def test_rearrangement() -> None:
    x, out = torch.randn(70, 45), torch.empty(45, 70)
    reductions.transpose_kernel[(3, 2)](x, out, 70, 45, BLOCK_M=32, BLOCK_N=32, TRANS=True, num_ctas=2)
    assert torch.equal(out, x.t())
    x, flipped, columns = torch.randn(16, 32), torch.empty(16, 32), torch.empty(16, 32)
    shapes.flip_kernel[(1,)](x, flipped, columns, M=16, N=32, num_ctas=2)
    assert torch.equal(flipped, x.flip(0)) and torch.equal(columns, x.flip(1))


@pytest.mark.parametrize(("num_ctas", "num_stages"), [(2, 3), (4, 1)])
def test_matmul(num_ctas: int, num_stages: int) -> None:
    m, n, k = 200, 136, 96
    a, b, c = torch.randn(m, k).half(), torch.randn(k, n).half(), torch.empty(m, n)
    compiled = matmul.matmul_kernel[(4,)](
        a,
        b,
        c,
        m,
        n,
        k,
        k,
        1,
        n,
        1,
        n,
        PRECISION="ieee",
        IMPRECISE=None,
        BLOCK_M=128,
        BLOCK_N=128,
        BLOCK_K=32,
        GROUP=2,
        num_ctas=num_ctas,
        num_stages=num_stages,
    )
    assert "wgmma.mma_async" in compiled.asm["ptx"]
    assert_near(c, a.double() @ b.double(), 16, a.double().abs() @ b.double().abs(), FP32)


@needs((3, 9), "cannot load by TMA for several blocks")
@pytest.mark.parametrize("num_stages", [1, 3])
def test_matmul_by_tma(num_stages: int) -> None:
    m, n, k = 256, 128, 96
    a, b, c = torch.randn(m, k).half(), torch.randn(n, k).half(), torch.empty(m, n, dtype=torch.float16)
    tensors: Any = (TensorDescriptor.from_tensor(t, s) for t, s in ((a, [128, 32]), (b, [64, 32]), (c, [128, 64])))
    compiled = matmul.persistent_kernel[(2,)](
        *tensors,
        m,
        n,
        k,
        BLOCK_M=128,
        BLOCK_N=64,
        BLOCK_K=32,
        GROUP=2,
        FLATTEN=False,
        SPECIALIZE=False,
        num_ctas=2,
        num_stages=num_stages,
    )
    assert "cp.async.bulk.tensor" in compiled.asm["ptx"]
    assert_near(c, a.double() @ b.double().T, 16, a.double().abs() @ b.double().abs().T, FP32)
