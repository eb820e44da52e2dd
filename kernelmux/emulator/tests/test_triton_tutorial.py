"""A user's Triton kernel with `tl.sum(x * x)` is a warning in full mode, and a race is still a race."""

import pytest
import torch

pytest.importorskip("triton")

from kernelmux.emulator import EmulatorError, checks
from kernelmux.emulator.memory.redundant_stores import RedundantStore
from kernelmux.emulator.tests.triton_kernels import tutorial as kernels

pytestmark = pytest.mark.usefixtures("arch")


@pytest.mark.parametrize("n", [33, 100])
def test_the_sum_of_squares_of_a_tutorial_passes(n: int) -> None:
    torch.manual_seed(0)
    x, weight, y = torch.randn(5, n), torch.randn(n), torch.empty(5, n)
    with checks("full"), pytest.warns(RedundantStore, match=r"tutorial\.py:12: redundant store"):
        kernels.rms_norm_kernel[(5,)](x, weight, y, n, 1e-6, BLOCK=128)
    expected = torch.nn.functional.rms_norm(x.double(), (n,), weight.double(), 1e-6)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=0)


def test_programs_that_store_to_one_place_are_a_race() -> None:
    torch.manual_seed(0)
    with checks("full"), pytest.raises(EmulatorError) as raised:
        kernels.racing_kernel[(5,)](torch.randn(5, 100), torch.empty(1), 100, BLOCK=128)
    assert raised.value.kind == "race"
