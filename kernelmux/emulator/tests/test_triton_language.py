"""Control flow, memory modifiers, printing, asserting and launch options of Triton on both targets."""

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from kernelmux.emulator import EmulatorError
from kernelmux.emulator.tests.near import assert_near
from kernelmux.emulator.tests.triton_kernels import language as kernels
from kernelmux.emulator.tests.triton_version import until

pytestmark = pytest.mark.usefixtures("arch")


def test_while_loops_with_branches() -> None:
    x, out = torch.arange(1, 13, dtype=torch.int32), torch.empty(12, dtype=torch.int32)
    kernels.collatz_kernel[(4, 3)](x, out)
    assert out.tolist() == [0, 1, 7, 2, 5, 8, 16, 3, 19, 6, 14, 9]


def test_a_while_loop_over_a_tile() -> None:
    x, out = torch.rand(256) * 9 + 1.5, torch.empty(256)
    kernels.newton_kernel[(1,)](x, out, N=256)
    assert_near(out, x.double().sqrt(), 4)


def test_calls() -> None:
    x, out = torch.randn(4, 64), torch.zeros(4, 2)
    kernels.calls_kernel[(4,)](x, out, N=64)
    size = x.double().sum(1).abs()
    shift = torch.where(x.double().sum(1) > 0, 1 - 2, 2 - 1)  # 2 x + 1 and -x - 2, or x - 1 and -2 x + 2
    assert_near(out[:, 0], size + shift, 16, 3 * x.double().abs().sum(1) + 3)
    assert out[:, 1].tolist() == [5, 8, 0, 21]


@pytest.mark.parametrize(("stages", "flatten"), [(3, False), (1, True)])
def test_ranges(stages: int, flatten: bool) -> None:
    x, out = torch.randn(5, 7, 128), torch.empty(5, 128)
    kernels.ranges_kernel[(2,)](x, out, 5, 7, STAGES=stages, FLATTEN=flatten, BLOCK=128)
    factor = torch.arange(1, 8).double()[:, None]
    assert_near(out, (x.double() * factor).sum(1), 8, (x.double().abs() * factor).sum(1))


def test_cache_modifiers_and_eviction_policies() -> None:
    x, out = torch.randn(200), torch.empty(256)
    kernels.modifiers_kernel[(2,)](x, out, 200, BLOCK=128)
    assert_near(out[:200], 6 * x.double(), 6)
    assert (out[200:] == 21).all()


@until((3, 9), "has no block pointers")
@pytest.mark.filterwarnings("ignore:.*block.p.*")
def test_block_pointers() -> None:
    x, out = torch.randn(40, 50), torch.empty(40, 50)
    kernels.block_pointer_kernel[(2,)](x, out, 40, 50, BLOCK_M=32, BLOCK_N=16)
    exact = x.double()
    ends = torch.tensor([min((j // 16 + 1) * 16, 50) - 1 for j in range(50)])
    assert_near(out, exact + exact.cumsum(1)[:, ends], 16, exact.abs().cumsum(1)[:, ends] + 1)


def test_printing(arch: str, capfd: pytest.CaptureFixture[str]) -> None:
    kernels.printing_kernel[(1,)](torch.arange(32.0), N=32, num_warps=1)
    text = capfd.readouterr().out
    lines = [line for line in text.splitlines() if "x" in line and "idx" in line]
    assert any("pid (0, 0, 0) idx (31)" in line and "31.0" in line for line in lines), text
    assert text.count("0x") >= 32


def test_asserting() -> None:
    x = torch.ones(32)
    kernels.asserting_kernel[(1,)](x, N=32, num_warps=1, debug=True)
    x[-1] = 0
    kernels.asserting_kernel[(1,)](x, N=32, num_warps=1, debug=False)  # left out
    with pytest.raises(EmulatorError, match="x must be positive") as raised:
        kernels.asserting_kernel[(1,)](x, N=32, num_warps=1, debug=True)
    assert raised.value.kind == "trap"


@pytest.mark.parametrize(
    "options",
    [{"num_warps": w} for w in (1, 2, 8, 32)] + [{"maxnreg": 64}, {"enable_fp_fusion": False}],
    ids=str,
)
def test_options(options: dict[str, Any]) -> None:
    x, out = torch.randn(1000), torch.empty(1000)
    kernels.options_kernel[(1,)](x, out, 1000, BLOCK=1024, **options)
    exact = x.double()
    assert_near(out, exact * exact.sum(), 16, exact.abs() * exact.abs().sum())


@pytest.mark.parametrize("launch_pdl", [False, True])
def test_dependent_launches(arch: str, launch_pdl: bool) -> None:
    if arch == "sm_80":
        pytest.skip("sm_80 has no programmatic dependent launch")
    x, out = torch.randn(64), torch.empty(64)
    compiled = kernels.dependent_kernel[(1,)](x, out, BLOCK=64, launch_pdl=launch_pdl)
    assert torch.equal(out, x + 1) and "griddepcontrol" in compiled.asm["ptx"]


def test_clocks_and_numbers_of_the_machine() -> None:
    out = torch.full((4,), -1, dtype=torch.int32)
    kernels.clock_kernel[(1,)](out, num_warps=2)
    assert out[0] >= 0 and out[1:].tolist() == [1, 64, 2]


def test_numpy_arrays_are_no_tensors() -> None:
    with pytest.raises((TypeError, AttributeError, ValueError)):
        kernels.options_kernel[(1,)](np.ones(8), np.ones(8), 8, BLOCK=8)
