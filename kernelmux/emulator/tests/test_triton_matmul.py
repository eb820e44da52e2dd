"""Matrix products in Triton on both targets, against float64."""

from typing import Any

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernelmux.emulator import EmulatorError, checks
from kernelmux.emulator.tests.near import FP32, TF32, assert_near
from kernelmux.emulator.tests.triton_kernels import matmul as kernels
from kernelmux.emulator.tests.triton_version import VERSION

pytestmark = pytest.mark.usefixtures("arch")

M, N, K = 72, 88, 144
FP8_SUMS = {"sm_80": 8 * FP32, "sm_90": 2.0**-13, "sm_100": 8 * FP32}  # wgmma keeps 13 bits below the largest term
PRODUCT = {"sm_80": "mma.sync", "sm_90": "wgmma.mma_async", "sm_100": "tcgen05.mma"}


def operands(dtype: torch.dtype, m: int = M, n: int = N, k: int = K) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)


def run(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    precision: str = "ieee",
    imprecise: int | None = None,
    block: tuple[int, int, int] = (32, 32, 32),
    sums: Any = tl.float32,
    **options: Any,
) -> Any:
    (m, k), n = a.shape, b.shape[1]
    grid = (triton.cdiv(m, block[0]) * triton.cdiv(n, block[1]),)
    return kernels.matmul_kernel[grid](
        a,
        b,
        c,
        m,
        n,
        k,
        *a.stride(),
        *b.stride(),
        c.stride(0),
        PRECISION=precision,
        IMPRECISE=imprecise,
        BLOCK_M=block[0],
        BLOCK_N=block[1],
        BLOCK_K=block[2],
        GROUP=2,
        SUMS=sums,
        **options,
    )


def check(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, unit: float = FP32, roundings: float = 16) -> None:
    a, b = a.double(), b.double()
    assert_near(c, a @ b, roundings, a.abs() @ b.abs(), unit)


@pytest.mark.parametrize(
    ("dtype", "precision", "unit", "block"),
    [
        (torch.float32, "ieee", FP32, (64, 64, 32)),
        (torch.float32, "tf32", TF32 / 4, (64, 64, 32)),  # 16 of these: both operands lose up to two units
        (torch.float32, "tf32x3", 4 * FP32, (64, 64, 32)),
        (torch.float16, "ieee", FP32, (64, 64, 32)),
        (torch.bfloat16, "ieee", FP32, (64, 64, 32)),
        (torch.float16, "ieee", FP32, (32, 32, 32)),  # too small for wgmma
    ],
    ids=str,
)
def test_matmul(arch: str, dtype: torch.dtype, precision: str, unit: float, block: tuple[int, int, int]) -> None:
    a, b = operands(dtype)
    c = torch.empty(M, N, dtype=dtype)
    compiled = run(a, b, c, precision, block=block, num_warps=4, num_stages=2)
    check(a, b, c, unit)
    if precision == "ieee" and dtype == torch.float32:
        assert "mma." not in compiled.asm["ptx"]
    else:
        assert (PRODUCT[arch] if block[0] == 64 else "mma.sync") in compiled.asm["ptx"]


@pytest.mark.parametrize(("num_stages", "transposed"), [(1, False), (3, True), (4, False)])
def test_pipelines_and_transposed_operands(num_stages: int, transposed: bool) -> None:
    a, b = operands(torch.float16)
    b = b.t().contiguous().t() if transposed else b
    c = torch.empty(M, N)
    compiled = run(a, b, c, block=(64, 32, 32), num_warps=4, num_stages=num_stages)
    assert ("cp.async" in compiled.asm["ptx"]) == (num_stages > 1)
    check(a, b, c)


@pytest.mark.parametrize("num_warps", [1, 8])
def test_numbers_of_warps(num_warps: int) -> None:
    a, b = operands(torch.bfloat16)
    c = torch.empty(M, N, dtype=torch.bfloat16)
    run(a, b, c, block=(64, 64, 32), num_warps=num_warps, num_stages=2)
    check(a, b, c)


def test_fp16_accumulation(arch: str) -> None:
    if arch == "sm_100":
        pytest.skip("products of tcgen05 with sums of fp16 are not emulated")
    a, b = (x / 8 for x in operands(torch.float16))
    c = torch.empty(M, N, dtype=torch.float16)
    run(a, b, c, block=(64, 64, 32), sums=tl.float16)
    check(a, b, c, TF32, 12)


def test_fp64() -> None:
    a, b = operands(torch.float64, 32, 32, 32)
    c = torch.empty(32, 32, dtype=torch.float64)
    run(a, b, c, block=(16, 16, 16), sums=tl.float64)
    check(a, b, c, 2.0**-53)


@pytest.mark.parametrize(("dtype", "imprecise"), [(torch.float8_e4m3fn, None), (torch.float8_e5m2, 0)], ids=str)
def test_fp8(arch: str, dtype: torch.dtype, imprecise: int | None) -> None:
    if arch == "sm_80" and dtype == torch.float8_e4m3fn:
        pytest.skip("Triton has no e4m3 on sm_80")
    a, b = operands(dtype)
    b = b.t().contiguous().t()
    c = torch.empty(M, N)
    run(a, b, c, imprecise=imprecise, block=(64, 64, 64), num_stages=3)
    check(a, b, c, FP8_SUMS[arch], 2)


def test_fp8_with_sums_outside_of_the_tensor_core(arch: str) -> None:
    """Triton adds what wgmma has summed without a wait. ptxas puts one into the machine code; full mode objects."""
    a, b = operands(torch.float8_e5m2)
    b, c = b.t().contiguous().t(), torch.empty(M, N)
    with checks("fast"):
        run(a, b, c, imprecise=32, block=(64, 64, 64), num_stages=3)
    check(a, b, c, FP8_SUMS[arch], 2)
    if arch == "sm_90":
        with pytest.raises(EmulatorError, match=r"read before wgmma\.wait_group"):
            run(a, b, c, imprecise=32, block=(64, 64, 64), num_stages=3)


def test_int8() -> None:
    a, b = (torch.randint(-128, 128, shape).to(torch.int8) for shape in ((M, K), (K, N)))
    c = torch.empty(M, N, dtype=torch.int32)
    run(a, b.t().contiguous().t(), c, block=(64, 64, 64), sums=tl.int32)
    assert torch.equal(c.double(), a.double() @ b.double())


@pytest.mark.parametrize(
    ("flatten", "specialize", "device"),
    [(False, False, False), (True, False, True), (False, True, False), (False, True, True), (True, True, False)],
)
def test_persistent(arch: str, flatten: bool, specialize: bool, device: bool) -> None:
    if arch == "sm_100" and specialize and not flatten and VERSION < (3, 7):
        pytest.skip("Triton 3.6 cannot compile warp-specialised loops within a loop for sm_100")
    if arch == "sm_100" and specialize and VERSION == (3, 8):
        pytest.skip("warps of Triton 3.8 meet at `bar.sync 0` from two places, which is reported as divergence")
    a, b = operands(torch.float16, 136, 80, 96)
    b = b.t().contiguous()
    c = torch.empty(136, 80, dtype=torch.float16)
    block = {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 32}
    tensors: tuple[Any, ...] = (a, b, c)
    if not device:
        shapes = ([64, 32], [32, 32], [64, 32])
        tensors = tuple(TensorDescriptor.from_tensor(t, s) for t, s in zip(tensors, shapes, strict=True))
    kernel = kernels.persistent_device_kernel if device else kernels.persistent_kernel
    # Triton 3.6 and 3.7 initialise the barriers of a loop again without mbarrier.inval: full mode reports that.
    with checks("fast" if specialize and not flatten and VERSION < (3, 8) else "full"):
        compiled = kernel[(4,)](
            *tensors, 136, 80, 96, **block, GROUP=2, FLATTEN=flatten, SPECIALIZE=specialize, num_stages=3
        )
    assert ("cp.async.bulk.tensor" in compiled.asm["ptx"]) == (arch != "sm_80")
    check(a, b.t(), c)


def test_matvec_of_int8_weights() -> None:
    m, k = 100, 300
    w, scale = torch.randint(-128, 128, (m, k)).to(torch.int8), torch.rand(m) / 128
    x, y = torch.randn(k).bfloat16(), torch.empty(m, dtype=torch.bfloat16)
    kernels.matvec_kernel[(4,)](w, scale, x, y, m, k, BLOCK_M=32, BLOCK_K=64)
    exact = w.double() * scale[:, None].double()
    assert_near(y, exact @ x.double(), 16, exact.abs() @ x.double().abs())


E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
CODES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "bf16": torch.bfloat16, "fp16": torch.float16}


def scaled_operand(kind: str, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernel receives, and its values; two e2m1 share a byte, the first one in the lower half."""
    if kind == "e2m1":
        codes = torch.randint(0, 16, (rows, columns), dtype=torch.uint8)
        values = E2M1[(codes & 7).long()] * torch.where(codes > 7, -1, 1)
        return codes[:, ::2] | codes[:, 1::2] << 4, values
    values = torch.randn(rows, columns).to(CODES[kind])
    return (values.view(torch.uint8) if kind in ("e4m3", "e5m2") else values), values.float()


@pytest.mark.parametrize(("a_kind", "b_kind"), [("e2m1", "e4m3"), ("e5m2", "bf16"), ("fp16", "fp16")])
def test_scaled_formats(arch: str, a_kind: str, b_kind: str) -> None:
    """Triton widens them to 16 bits and multiplies these."""
    if arch == "sm_80" and "e4m3" in (a_kind, b_kind):
        pytest.skip("Triton has no e4m3 on sm_80")
    if arch == "sm_100" and "e2m1" in (a_kind, b_kind):
        pytest.skip("conversions of e2m1 (cvt.rn.bf16x2.e2m1x2) are not emulated")
    torch.manual_seed(0)
    m, n, k = 64, 64, 128
    (a, a_values), (b, b_values) = scaled_operand(a_kind, m, k), scaled_operand(b_kind, k, n)
    a_scale, b_scale = (torch.randint(124, 131, (rows, k // 32), dtype=torch.uint8) for rows in (m, n))
    c = torch.empty(m, n)
    kernels.scaled_kernel[(1,)](
        a, a_scale, b, b_scale, c, A=a_kind, B=b_kind, A_PACK=2 if a_kind == "e2m1" else 1, M=m, N=n, K=k
    )
    wide_a, wide_b = (2.0 ** (s.double() - 127).repeat_interleave(32, 1) for s in (a_scale, b_scale))
    check(a_values.double() * wide_a, b_values.double() * wide_b.T, c)
