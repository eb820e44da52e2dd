"""A user's Triton kernel with `tl.sum(x * x)` is a warning in full mode, and a race is still a race."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from kernelmux.emulator import EmulatorError, checks
from kernelmux.emulator.memory.redundant_stores import RedundantStore
from kernelmux.emulator.tests.triton_kernels import tutorial as kernels
from kernelmux.emulator.tests.triton_version import VERSION

pytestmark = pytest.mark.usefixtures("arch")


def warning(n: int, line: str) -> Any:
    """Of sums whose copies differ. Before 3.8 all threads get one sum of several warps, through shared memory."""
    if n > 32 and VERSION < (3, 8):
        return nullcontext()
    return pytest.warns(RedundantStore, match=rf"tutorial\.py:{line}: redundant store")


@pytest.mark.parametrize("n", [33, 100])
def test_the_sum_of_squares_of_a_tutorial_passes(n: int) -> None:
    torch.manual_seed(0)
    x, weight, y = torch.randn(5, n), torch.randn(n), torch.empty(5, n)
    with checks("full"), warning(n, "12"):
        kernels.rms_norm_kernel[(5,)](x, weight, y, n, 1e-6, BLOCK=128)
    expected = torch.nn.functional.rms_norm(x.double(), (n,), weight.double(), 1e-6)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=0)


def test_programs_that_store_to_one_place_are_a_race() -> None:
    torch.manual_seed(0)
    with checks("full"), pytest.raises(EmulatorError) as raised:
        kernels.racing_kernel[(5,)](torch.randn(5, 100), torch.empty(1), 100, BLOCK=128)
    assert raised.value.kind == "race"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [13, 33, 100])
def test_sums_whose_terms_cancel_are_a_warning_however_far_apart(n: int, dtype: torch.dtype) -> None:
    """Fewer elements than threads: each sum is held several times, and its roundings are large beside what is left."""
    torch.manual_seed(0)
    x, w, y = torch.randn(64, n), torch.randn(n), torch.empty(64, dtype=dtype)
    with checks("full"), warning(n, r"\d+"):
        kernels.dot_kernel[(16,)](x, w, y, n, ROWS=4, BLOCK=1 << (n - 1).bit_length())
    magnitude = x.double().abs() @ w.double().abs()
    unit = torch.finfo(dtype).eps
    assert ((y.double() - x.double() @ w.double()).abs() <= 2e-6 * magnitude + unit * y.double().abs()).all()


def test_two_values_of_a_program_for_one_place_are_a_race() -> None:
    """The author's doing, whatever threads hold: different elements of a tensor, one address."""
    torch.manual_seed(0)
    with checks("full"), pytest.raises(EmulatorError, match=r"tutorial\.py:40.* of global memory") as raised:
        kernels.pairs_kernel[(1,)](torch.randn(100), torch.empty(50), 100, BLOCK=128)
    assert raised.value.kind == "race"
