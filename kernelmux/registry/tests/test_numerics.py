"""The error bound and the comparison: what they accept, and above all what they refuse."""

import math

import pytest
import torch

from kernelmux.registry.spec import numerics
from kernelmux.registry.spec.numerics import ErrorModel, compare


def limits(ref, value=1e-3):
    return torch.full_like(ref, value)


def test_an_error_of_the_bound_passes_and_twice_the_bound_does_not():
    ref = torch.zeros(4, dtype=torch.float64)
    assert compare(torch.tensor([0, 1e-3, 0, 0], dtype=torch.float64), ref, limits(ref)).passed
    worst = compare(torch.tensor([0, 0, 2e-3, 0], dtype=torch.float64), ref, limits(ref))
    assert not worst.passed and worst.index == (2,) and worst.budget == pytest.approx(2)


@pytest.mark.parametrize(
    ("got", "want", "fine"),
    [
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (1.0, math.nan, False),
        (math.inf, math.inf, True),
        (-math.inf, math.inf, False),
        (math.inf, 1.0, False),
        (65504.0, math.inf, False),
    ],
)
def test_the_pattern_of_nan_and_inf_must_match(got, want, fine):
    ref = torch.tensor([want], dtype=torch.float64)
    assert compare(torch.tensor([got], dtype=torch.float16), ref, limits(ref)).passed is fine


def test_overflow_of_the_output_dtype_is_an_infinity_of_the_right_sign():
    ref = torch.tensor([1e6, -1e6], dtype=torch.float64)
    assert compare(torch.tensor([math.inf, -math.inf], dtype=torch.float16), ref, limits(ref)).passed
    assert not compare(torch.tensor([65504.0, -math.inf], dtype=torch.float16), ref, limits(ref)).passed


def test_next_to_the_largest_number_both_sides_are_right():
    ref = torch.tensor([65510.0], dtype=torch.float64)
    for got in (65504.0, math.inf):
        assert compare(torch.tensor([got], dtype=torch.float16), ref, limits(ref, 16.0)).passed


def test_where_the_bound_reaches_beyond_the_range_both_infinities_are_right():
    """A weight whose exponent is off by hundreds overflows, whatever the sign of what it multiplies."""
    ref = torch.tensor([278.0], dtype=torch.float64)
    for got in (math.inf, -math.inf):
        assert compare(torch.tensor([got], dtype=torch.float16), ref, limits(ref, 1e262)).passed
    assert not compare(torch.tensor([-math.inf], dtype=torch.float16), ref, limits(ref, 65600.0)).passed
    assert not compare(torch.tensor([math.nan], dtype=torch.float16), ref, limits(ref, 1e262)).passed


def test_an_empty_result_is_right():
    ref = torch.empty(0, 3, dtype=torch.float64)
    assert compare(torch.empty(0, 3), ref, limits(ref)).passed


def sum_bound(how, n, dtype=torch.float32):
    x = torch.ones(n, dtype=torch.float64)
    model = ErrorModel(magnitude=lambda x: x.abs().sum(), terms=lambda axes: axes["N"])
    return numerics.bound(model, how, x.sum(), dtype, dtype, (x,), {"N": n})


def test_the_bound_grows_with_the_chain_and_with_coarser_arithmetic():
    totals = [sum_bound(how, 4096).total.item() for how in (numerics.FP32, numerics.FP32_SEQUENTIAL, numerics.TF32)]
    assert totals == sorted(totals)
    assert sum_bound(numerics.FP32, 64).total < sum_bound(numerics.FP32, 4096).total


def test_the_bound_rejects_a_dropped_term_of_a_long_positive_sum():
    n = 4096
    limit = sum_bound(numerics.FP32, n)
    ref = torch.tensor(float(n), dtype=torch.float64)
    assert not compare(torch.tensor(float(n - 1)), ref, limit.total).passed


def test_tensor_core_arithmetic_of_fp32_follows_the_precision():
    assert numerics.arithmetic("mma", torch.float32, {"precision": "tf32"}) is numerics.TF32
    assert numerics.arithmetic("mma", torch.float32, {"precision": "ieee"}) is numerics.FP32_SEQUENTIAL
    assert numerics.arithmetic("mma", torch.float16, {}) is numerics.MMA


def test_the_bias_of_fp8_sums_grows_no_further_where_they_are_promoted():
    full, fast = (numerics.arithmetic("mma", torch.float8_e4m3fn, {"accumulation": how}) for how in ("full", "fast"))
    assert full.bias(64) < full.bias(128) == full.bias(4096) < fast.bias(128) < fast.bias(4096)


def test_a_bound_can_be_read():
    text = sum_bound(numerics.FP32, 64).at(())
    assert "rounding" in text and "accumulation" in text and "h = 9" in text


@pytest.mark.parametrize(("got", "want", "distance"), [(1.0 + 2**-23, 1.0, 1), (1.0, 1.0, 0), (2.0, 2.0 + 2**-21, 2)])
def test_ulps(got, want, distance):
    assert numerics.ulps(got, want, torch.float32) == pytest.approx(distance)
