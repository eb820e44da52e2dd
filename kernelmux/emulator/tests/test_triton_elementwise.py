"""Elementwise Triton kernels on both targets, against float64."""

from typing import Any

import pytest
import torch

pytest.importorskip("triton")
import triton

from kernelmux.emulator.tests.near import assert_near
from kernelmux.emulator.tests.triton_kernels import elementwise as kernels

F = torch.nn.functional
pytestmark = pytest.mark.usefixtures("arch")

N = 700
# name: (float64 function, roundings on the way relative to the scale, scale of what is rounded)
FUNCTIONS: dict[str, tuple[Any, float, Any]] = {
    "square": (lambda x: x * x, 1, None),
    "cubic": (
        lambda x: ((0.5 * x - 1.25) * x + 2) * x - 0.75,
        4,
        lambda x: ((0.5 * x.abs() + 1.25) * x.abs() + 2) * x.abs() + 0.75,
    ),
    "gelu_erf": (F.gelu, 6, lambda x: x),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), 12, lambda x: x),
    "silu": (F.silu, 12, lambda x: x * (1 + x.abs())),  # exp(-x) carries the rounding of x * log2(e): |x| units
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64], ids=str)
def test_add(dtype: torch.dtype) -> None:
    x, y = ((torch.randn(N) * 100).to(dtype) for _ in range(2))
    out = torch.empty_like(x)
    kernels.add_kernel[(triton.cdiv(N, 256),)](x, y, out, N, BLOCK=256)
    assert torch.equal(out, x + y)


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.float32) for name in FUNCTIONS), ("gelu_tanh", torch.bfloat16)], ids=str
)
def test_functions(name: str, dtype: torch.dtype) -> None:
    reference, roundings, scale = FUNCTIONS[name]
    x = torch.linspace(-9, 9, N).to(dtype)
    out = torch.empty_like(x)
    kernels.map_kernel[(3,)](x, out, N, FUNCTION=getattr(kernels, name), BLOCK=256, num_warps=2)
    exact = x.double()
    assert_near(out, reference(exact), roundings, scale and scale(exact))


@pytest.mark.parametrize(("name", "reference"), [("silu", F.silu), ("gelu_erf", F.gelu)])
def test_gated_units(name: str, reference: Any) -> None:
    """swiglu and geglu, of rows in a wider tensor."""
    x = torch.randn(5, 450)[:, :400].half()
    out = torch.empty(5, 200, dtype=x.dtype)
    kernels.gated_kernel[(5, 2)](x, out, x.stride(0), 200, FUNCTION=getattr(kernels, name), BLOCK=128)
    gate, up = x.double().chunk(2, 1)
    assert_near(out, reference(gate) * up, 16, gate * up)
