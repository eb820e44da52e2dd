"""Triton kernels on CPU tensors: compiled by Triton for sm_90, run by the emulator."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.tools.tensor_descriptor import TensorDescriptor

from kernelmux.emulator import EmulatorError, checks, triton_driver

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def emulated() -> Any:
    """The emulator as the active driver, and full checks."""
    before = triton.runtime.driver._active
    triton_driver.activate()
    with checks("full"):
        yield
    triton.runtime.driver._active = before


def test_activating_twice_changes_nothing() -> None:
    driver = triton.runtime.driver.active
    triton_driver.activate()
    assert triton.runtime.driver.active is driver
    assert driver.get_current_target().arch == 90


@triton.jit
def gelu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask).to(tl.float32)
    t = libdevice.tanh(0.7978845608 * (x + 0.044715 * x * x * x))
    tl.store(y_ptr + offs, (0.5 * x * (1 + t)).to(y_ptr.dtype.element_ty), mask=mask)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elementwise_with_libdevice(dtype: torch.dtype) -> None:
    x = torch.randn(1000, dtype=dtype)
    y = torch.empty_like(x)
    gelu_kernel[(triton.cdiv(1000, 256),)](x, y, 1000, BLOCK=256)
    torch.testing.assert_close(y, torch.nn.functional.gelu(x.double(), approximate="tanh").to(dtype))


@triton.jit
def softmax_kernel(x_ptr, y_ptr, stride_x, n, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_x + offs, mask=offs < n, other=float("-inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + row * n + offs, (e / tl.sum(e, 0)).to(y_ptr.dtype.element_ty), mask=offs < n)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_row_reductions_on_a_strided_view(dtype: torch.dtype) -> None:
    x = torch.randn(7, 1200, dtype=dtype)[:, :1000]
    y = torch.empty(7, 1000, dtype=dtype)
    softmax_kernel[(7,)](x, y, x.stride(0), 1000, BLOCK=1024)
    torch.testing.assert_close(y, torch.softmax(x.double(), 1).to(dtype))


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bk, stride_cm,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        in_k = k + offs_k < K
        a = tl.load(
            a_ptr + offs_m[:, None] * stride_am + (k + offs_k)[None, :],
            mask=(offs_m[:, None] < M) & in_k[None, :], other=0.0,
        )  # fmt: skip
        b = tl.load(
            b_ptr + (k + offs_k)[:, None] * stride_bk + offs_n[None, :],
            mask=in_k[:, None] & (offs_n[None, :] < N), other=0.0,
        )  # fmt: skip
        sums = tl.dot(a, b, sums, input_precision=PRECISION)
    mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    tl.store(c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :], sums.to(c_ptr.dtype.element_ty), mask=mask)


def run_matmul(dtype: torch.dtype, precision: str, block: tuple[int, int, int], num_warps: int, num_stages: int) -> Any:
    torch.manual_seed(0)
    m, n, k = 104, 88, 200
    a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    c = torch.empty(m, n, dtype=dtype)
    grid = (triton.cdiv(m, block[0]), triton.cdiv(n, block[1]))
    compiled = matmul_kernel[grid](
        a, b, c, m, n, k, k, n, n,
        PRECISION=precision, BLOCK_M=block[0], BLOCK_N=block[1], BLOCK_K=block[2],
        num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return compiled, c, (a.double() @ b.double()).to(dtype)


@pytest.mark.parametrize(
    ("dtype", "precision", "block", "num_warps", "instruction"),
    [
        (torch.float16, "ieee", (64, 64, 32), 4, "wgmma.mma_async"),
        (torch.bfloat16, "ieee", (128, 64, 64), 8, "wgmma.mma_async"),
        (torch.bfloat16, "ieee", (64, 128, 64), 4, "wgmma.mma_async"),
        (torch.float32, "tf32", (64, 64, 32), 4, "wgmma.mma_async"),
        (torch.bfloat16, "ieee", (32, 32, 32), 2, "mma.sync"),
        (torch.float32, "tf32", (32, 32, 32), 2, "mma.sync"),
        (torch.float32, "ieee", (32, 32, 32), 4, "fma.rn.f32"),
    ],
)
@pytest.mark.parametrize("num_stages", [1, 3])
def test_matmul(
    dtype: torch.dtype, precision: str, block: tuple[int, int, int], num_warps: int, instruction: str, num_stages: int
) -> None:
    compiled, got, expected = run_matmul(dtype, precision, block, num_warps, num_stages)
    assert instruction in compiled.asm["ptx"] and compiled.n_regs > 0
    tolerance = 0.05 if precision == "tf32" else {torch.float32: 1e-4}.get(dtype, 0.02)
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8], ids=str)
def test_matmul_of_eight_bits(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = torch.randint(-4, 5, (64, 128)).to(dtype), torch.randint(-4, 5, (64, 128)).to(dtype)
    c = torch.empty(64, 64, dtype=torch.int32 if dtype == torch.int8 else torch.float32)
    compiled = eight_bit_kernel[(1,)](a, b, c, 128, M=64, N=64, BLOCK_K=64)
    assert "wgmma.mma_async" in compiled.asm["ptx"]
    assert torch.equal(c.double(), a.double() @ b.double().T)


@triton.jit
def eight_bit_kernel(a_ptr, b_ptr, c_ptr, K, M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr):
    offs_m, offs_n, offs_k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BLOCK_K)
    sums = tl.zeros((M, N), c_ptr.dtype.element_ty)
    for k in range(0, K, BLOCK_K):
        a = tl.load(a_ptr + offs_m[:, None] * K + (k + offs_k)[None, :])
        b = tl.load(b_ptr + (k + offs_k)[:, None] + offs_n[None, :] * K)
        sums = tl.dot(a, b, sums, out_dtype=c_ptr.dtype.element_ty)
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], sums)


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, S, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    base = tl.program_id(1) * S * D
    offs_m, offs_d = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, D)
    tile = base + offs_m[:, None] * D + offs_d[None, :]
    q = tl.load(q_ptr + tile, mask=offs_m[:, None] < S, other=0.0)
    m = tl.full((BLOCK_M,), -1e30, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    sums = tl.zeros((BLOCK_M, D), tl.float32)
    for start in range(0, S, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        keys = base + offs_n[:, None] * D + offs_d[None, :]
        k = tl.load(k_ptr + keys, mask=offs_n[:, None] < S, other=0.0)
        v = tl.load(v_ptr + keys, mask=offs_n[:, None] < S, other=0.0)
        visible = (offs_n[None, :] < S) & (offs_n[None, :] <= offs_m[:, None])
        s = tl.where(visible, tl.dot(q, tl.trans(k)) * scale, -1e30)
        m_new = tl.maximum(m, tl.max(s, 1))
        p, shrink = tl.exp(s - m_new[:, None]), tl.exp(m - m_new)
        total = total * shrink + tl.sum(p, 1)
        sums = sums * shrink[:, None] + tl.dot(p.to(q.dtype), v)
        m = m_new
    tl.store(o_ptr + tile, (sums / total[:, None]).to(o_ptr.dtype.element_ty), mask=offs_m[:, None] < S)


def test_attention() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 100, 64).half() for _ in range(3))
    o = torch.empty_like(q)
    attention_kernel[(2, 2)](q, k, v, o, 100, 0.125, BLOCK_M=64, BLOCK_N=32, D=64)
    expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    torch.testing.assert_close(o.double(), expected, rtol=1e-2, atol=2e-3)


# --- arguments ------------------------------------------------------------------------------------------------


@triton.jit
def scalars_kernel(y_ptr, f, flag, small, large, nothing, pair, ONE, BLOCK: tl.constexpr):
    value = f + small.to(tl.float32) + (large >> 33).to(tl.float32) + pair[0] + pair[1]
    if flag:
        value += 1000.0
    if nothing is None:
        value += ONE
    tl.store(y_ptr + tl.arange(0, BLOCK), value)


@pytest.mark.parametrize("flag", [True, False])
def test_scalars_of_every_size(flag: bool) -> None:
    y = torch.empty(32)
    scalars_kernel[(1,)](y, 0.5, flag, -7, 5 << 33, None, (3, 0.25), 1, BLOCK=32)
    assert (y == 0.5 - 7 + 5 + 3.25 + 1 + 1000 * flag).all()


@pytest.mark.parametrize(("kind", "value", "bits"), [("bf16", 1 + 2**-8, 0x3F80), ("bf16", -2.0, 0xC000)])
def test_bf16_scalars_are_rounded_to_even(kind: str, value: float, bits: int) -> None:
    assert triton_driver.scalar(kind, value) == bits


@triton.jit
def tile_kernel(x, y, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    m, n = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    y.store([m, n], x.load([m, n]) * 2)


def test_host_tensor_descriptors() -> None:
    x = torch.randn(50, 72).half()
    y = torch.full_like(x, float("nan"))
    x_tiles, y_tiles = (TensorDescriptor.from_tensor(tensor, [32, 64]) for tensor in (x, y))
    compiled = tile_kernel[(2, 2)](x_tiles, y_tiles, BLOCK_M=32, BLOCK_N=64)
    assert "cp.async.bulk.tensor" in compiled.asm["ptx"]
    assert torch.equal(y, x * 2)


@triton.jit
def device_tile_kernel(x_ptr, y_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_M, BLOCK_N])
    y = tl.make_tensor_descriptor(y_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_M, BLOCK_N])
    m, n = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    y.store([m, n], x.load([m, n]) * 2)


def test_tensor_descriptors_made_by_the_kernel() -> None:
    """They live in global scratch memory, which the driver provides."""
    x = torch.randn(50, 72).half()
    y = torch.full_like(x, float("nan"))
    compiled = device_tile_kernel[(2, 2)](x, y, 50, 72, BLOCK_M=32, BLOCK_N=64)
    assert "tensormap.replace" in compiled.asm["ptx"] and compiled.metadata.global_scratch_size > 0
    assert torch.equal(y, x * 2)


@triton.autotune([triton.Config({"BLOCK": block}) for block in (128, 256)], key=["n"])
@triton.jit
def tuned_kernel(x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) + 1, mask=offs < n)


def test_autotune_takes_the_first_configuration_and_runs_once() -> None:
    x = torch.zeros(500)
    tuned_kernel[lambda meta: (triton.cdiv(500, meta["BLOCK"]),)](x, 500)
    assert tuned_kernel.best_config.kwargs == {"BLOCK": 128}
    assert (x == 1).all()


# --- errors ---------------------------------------------------------------------------------------------------


@triton.jit
def overrun_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)  # reads past the end
    tl.store(y_ptr + offs, x)


def test_an_error_names_the_argument_and_the_line_of_the_kernel() -> None:
    with pytest.raises(EmulatorError, match="x_ptr") as raised:
        overrun_kernel[(1,)](torch.zeros(100), torch.zeros(128), BLOCK=128)
    error = raised.value
    assert error.kind == "out of bounds" and error.kernel == "overrun_kernel"
    assert (error.file or "").endswith("test_triton_driver.py")
    source = Path(__file__).read_text().splitlines()
    assert "reads past the end" in source[(error.line or 0) - 1]
