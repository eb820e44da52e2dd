"""Gluon kernels on both targets."""

import pytest
import torch

pytest.importorskip("triton.experimental.gluon")
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernelmux.emulator.tests.near import assert_near
from kernelmux.emulator.tests.triton_kernels import gluon as kernels
from kernelmux.emulator.tests.triton_version import needs

pytestmark = pytest.mark.usefixtures("arch")


@pytest.fixture
def hopper(arch: str) -> None:
    if arch != "sm_90":
        pytest.skip("wgmma is of sm_90 alone")


def descriptor(tensor: torch.Tensor, block: list[int]) -> TensorDescriptor:
    kind = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16, torch.float32: gl.float32}[tensor.dtype]
    return TensorDescriptor.from_tensor(tensor, block, gl.NVMMASharedLayout.get_default_for(block, kind))


@pytest.mark.parametrize(
    ("dtype", "via_shared"),
    [(torch.float32, False), (torch.float32, True), (torch.float16, False), (torch.int32, True)],
    ids=str,
)
def test_layouts(dtype: torch.dtype, via_shared: bool) -> None:
    x = torch.randint(-100, 100, (32, 64)).to(dtype)
    y = torch.empty(64, 32, dtype=dtype)
    kernels.transpose_kernel[(1,)](x, y, M=32, N=64, VIA_SHARED=via_shared, num_warps=4)
    assert torch.equal(y, x.t())


def test_asynchronous_copies() -> None:
    x, y = torch.randn(900), torch.empty(900)
    compiled = kernels.cp_async_kernel[(1,)](x, y, 900, BLOCK=512, num_warps=4)
    assert "cp.async" in compiled.asm["ptx"]
    assert torch.equal(y, torch.cat((x[:512] * 2, x[512:] * 3)))


def test_mma() -> None:
    a, b, c = torch.randn(64, 32).half(), torch.randn(32, 64).half(), torch.empty(64, 64)
    compiled = kernels.mma_kernel[(1,)](a, b, c, M=64, N=64, K=32, num_warps=4)
    assert "mma.sync" in compiled.asm["ptx"]
    assert_near(c, a.double() @ b.double(), 16, a.double().abs() @ b.double().abs())


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(("stages", "num_warps"), [(2, 4), (3, 8)])
def test_wgmma_with_tma(stages: int, num_warps: int) -> None:
    m, n, k = 136, 96, 160
    a, b = torch.randn(m, k).half(), torch.randn(n, k).half()
    c = torch.empty(m, n, dtype=torch.float16)
    block_m, block_n, block_k = 16 * num_warps, 64, 32
    tensors = (descriptor(a, [block_m, block_k]), descriptor(b, [block_n, block_k]), descriptor(c, [block_m, block_n]))
    compiled = kernels.wgmma_kernel[(-(-m // block_m), -(-n // block_n))](
        *tensors, k, STAGES=stages, WARPS=num_warps, num_warps=num_warps
    )
    assert "wgmma.mma_async" in compiled.asm["ptx"] and "cp.async.bulk.tensor" in compiled.asm["ptx"]
    assert_near(c, a.double() @ b.double().T, 16, a.double().abs() @ b.double().abs().T)


@pytest.mark.usefixtures("hopper")
def test_specialized_warps() -> None:
    x, out = torch.randn(64, 200).half(), torch.empty(64)
    compiled = kernels.specialized_kernel[(1,)](descriptor(x, [64, 32]), out, 200, STAGES=3, num_warps=4)
    assert compiled.metadata.num_warps > 4
    assert_near(out, x.double().sum(1), 16, x.double().abs().sum(1))


@pytest.mark.usefixtures("hopper")
@needs((3, 8), "has no TMA reductions in Gluon")
def test_reduction_by_tma() -> None:
    x, out = torch.randn(32, 32), torch.randn(32, 32)
    expected = out + x
    compiled = kernels.reduce_kernel[(1,)](x, descriptor(out, [32, 32]), num_warps=4)
    assert "cp.reduce.async.bulk.tensor" in compiled.asm["ptx"] and torch.equal(out, expected)


@pytest.mark.usefixtures("hopper")
@needs((3, 9), "has other names for this")
def test_one_copy_for_two_blocks() -> None:
    x, out = torch.randn(32, 64).half(), torch.empty(32, 64, dtype=torch.float16)
    block = [32, 64]
    both = [[0, 0]]  # the second block of the cluster holds the same elements
    shared = gl.NVMMASharedLayout.get_default_for(block, gl.float16, cga_layout=both)
    layout = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=both)
    source = TensorDescriptor.from_tensor(x, block, shared)
    compiled = kernels.multicast_kernel[(1,)](source, out, LAYOUT=layout, num_ctas=2, num_warps=4)
    assert "multicast" in compiled.asm["ptx"] and torch.equal(out, x * 2)


@pytest.mark.usefixtures("hopper")
@needs((3, 8), "has no im2col copies in Gluon")
@pytest.mark.parametrize(("r", "s", "steps"), [(0, 0, [1, 1]), (2, 1, [1, 1]), (1, 2, [2, 2])], ids=str)
def test_pixels_under_a_filter(r: int, s: int, steps: list[int]) -> None:
    """A 3 x 3 filter with a margin of 1, over the pixels of two images."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptorIm2Col

    x = torch.randn(2, 6, 5, 16).half()  # [N, H, W, C]
    out = torch.empty(64, 16, dtype=torch.float16)
    source = TensorDescriptorIm2Col.from_tensor(
        x,
        [64, 16],
        gl.NVMMASharedLayout.get_default_for([64, 16], gl.float16),
        element_strides=[1, *steps, 1],
        pixel_box_lower_corner=[-1, -1],
        pixel_box_upper_corner=[-1, -1],
    )
    layout = gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])
    kernels.im2col_kernel[(1,)](source, out, 0, -1, -1, R=r, S=s, LAYOUT=layout, num_warps=4)
    padded = torch.nn.functional.pad(x, (0, 0, 1, 1, 1, 1))
    pixels = padded[:, r : r + 6 : steps[0], s : s + 5 : steps[1]].reshape(-1, 16)
    count = min(64, len(pixels))
    assert torch.equal(out[:count], pixels[:count])
