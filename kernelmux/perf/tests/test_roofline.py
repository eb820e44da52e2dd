"""The arithmetic of a row."""

import math
from dataclasses import replace
from typing import Any

import pytest

from kernelmux.perf.planning.plan import Row
from kernelmux.perf.rows import roofline
from kernelmux.perf.rows.options import PerfOptions
from kernelmux.perf.rows.roofline import Work
from kernelmux.perf.tests.synthetic import H200, PRODUCT, SOFTMAX
from kernelmux.perf.timing import inputs, measure
from kernelmux.registry.errors import UnsupportedError


def test_a_memory_bound_floor_is_bytes_over_the_copy_rate():
    least = roofline.floor(SOFTMAX, H200)
    assert least.binds == "memory"
    assert least.seconds == pytest.approx(SOFTMAX.bytes / 4.278e12)


def test_what_mostly_reads_meets_the_read_ceiling():
    reads = Work(bytes=1 << 30, flops=1 << 29, written=1 << 10)
    assert roofline.floor(reads, H200).memory == pytest.approx((1 << 30) / 4.39e12)


def test_a_compute_bound_floor_is_flops_over_the_rate_of_the_format():
    least = roofline.floor(PRODUCT, H200)
    assert least.binds == "compute"
    assert least.seconds * 1e6 == pytest.approx(1388, rel=1e-3)


@pytest.mark.parametrize(
    ("unit", "dtype", "format_"),
    [
        ("tensor", "bf16", "bf16"),
        ("tensor", "fp32", "tf32"),
        ("tensor", "e4m3", "e4m3"),
        ("fma", "fp32", "fp32"),
        ("fma", "bf16", "fp32"),
        ("fma", "e4m3", "fp32"),
        ("fma", "i32", "i32"),
        ("fma", "fp64", "fp64"),
    ],
)
def test_the_ceiling_follows_from_unit_and_dtype(unit, dtype, format_):
    assert Work(1, 1, 0, unit, dtype).matrix_format == format_


def test_a_product_in_fp32_may_be_made_of_pieces_on_tensor_cores():
    product = Work(bytes=3 * 4 * 4096**2, flops=2 * 4096**3, written=4 * 4096**2, dtype="fp32")
    assert roofline.peak(product, H200) == pytest.approx(400e12 / 3)
    assert roofline.above(2 * 4096**3 / 127e12, product, H200) is None  # what tensor cores reached on an H200
    assert roofline.above(2 * 4096**3 / 150e12, product, H200)
    alone = replace(H200, matmul={"fp32": 51e12})
    assert roofline.peak(product, alone) == pytest.approx(51e12)
    assert roofline.peak(replace(product, dtype="bf16"), H200) == pytest.approx(51e12)  # no products: no pieces either


@pytest.mark.parametrize(
    ("unit", "dtype"), [("tensor", "e4m3"), ("tensor", "e5m2"), ("tensor", "i8"), ("fma", "i32"), ("fma", "fp64")]
)
def test_arithmetic_without_a_ceiling_is_refused_and_not_called_memory_bound(unit, dtype):
    product = Work(bytes=3 * 8192**2, flops=2 * 8192**3, written=8192**2, unit=unit, dtype=dtype)
    for ask in (
        roofline.floor,
        lambda *a: roofline.above(1e-3, *a),
        lambda *a: roofline.point(1e-3, *a),
    ):
        with pytest.raises(
            UnsupportedError, match=f"no ceiling for arithmetic in {dtype} .* expected one of bf16, fp16"
        ):
            ask(product, H200)


def test_bytes_alone_need_no_ceiling_of_their_format():
    moved = Work(bytes=1 << 30, flops=0, written=1 << 29, dtype="i8")
    assert roofline.floor(moved, H200).binds == "memory"


def test_a_row_without_a_ceiling_fails_before_it_is_timed():
    made = inputs.make(Row("matmul", "a=64x64 b=64x64", "bf16", "torch_ref", "plain"), "cpu")
    shared = measure.Shared(made, made.call)
    unknown = replace(H200, matmul={"fp32": 51e12})
    nothing: Any = None
    with pytest.raises(UnsupportedError, match="no ceiling for arithmetic in bf16"):
        measure.time_row(nothing, nothing, shared, nothing, nothing, PerfOptions(), unknown)


def test_host_memory_meets_the_host_link():
    column = Work(bytes=55_000_000, flops=0, written=1, link="host")
    assert roofline.floor(column, H200).seconds == pytest.approx(1e-3)
    assert roofline.bound_by(2e-3, roofline.floor(column, H200), "host") == "link"


def test_a_short_call_is_launch_bound_whatever_it_does():
    least = roofline.floor(SOFTMAX, H200)
    assert roofline.bound_by(9e-6, least) == "launch"
    assert roofline.bound_by(11e-6, least) == "memory"


def test_a_rate_above_the_ceiling_is_refused_beyond_five_percent():
    least = roofline.floor(PRODUCT, H200).seconds
    assert roofline.above(least / 1.04, PRODUCT, H200) is None
    assert "1.20 times faster" in str(roofline.above(least / 1.2, PRODUCT, H200))


def test_writes_that_fit_the_cache_need_not_have_reached_memory():
    small = Work(bytes=3 << 20, flops=0, written=1 << 20)
    least = roofline.floor(small, H200).seconds
    assert roofline.above(least / 1.5, small, H200) is None
    assert roofline.above(least / 1.7, small, H200)


def test_the_rate_is_in_the_unit_of_what_binds():
    number, unit = roofline.rate(1e-3, SOFTMAX, roofline.floor(SOFTMAX, H200))
    assert number == pytest.approx(SOFTMAX.bytes / 1e6)
    assert unit == "GB/s"
    assert roofline.rate(1e-3, PRODUCT, roofline.floor(PRODUCT, H200))[1] == "TFLOP/s"


@pytest.mark.parametrize(
    ("bound", "share", "spread", "host_us", "word"),
    [
        ("memory", 0.95, 0.01, 10, "roof"),
        ("memory", 0.70, 0.01, 10, "loads in flight"),
        ("memory", 0.50, 0.01, 10, "accesses"),
        ("memory", 0.20, 0.01, 10, "poor: see its accesses"),
        ("compute", 0.30, 0.01, 10, "matrix units"),
        ("compute", 0.30, 0.30, 10, "noisy"),
        ("memory", 0.95, 0.01, 500, "host is slower"),
        ("link", 0.10, 0.01, 500, "transfers"),
        ("launch", 0.10, 0.01, 10, "graph"),
    ],
)
def test_advice(bound, share, spread, host_us, word):
    assert word in roofline.advice(bound, share, spread, 100.0, host_us)


def test_hints_fit_a_column():
    assert all(len(text) <= 27 for steps in roofline.HINTS.values() for _, text in steps)


def test_what_nothing_is_known_of_has_no_advice() -> None:
    """A bound of another version, a share that is no number: the page shows the row without a hint."""
    for bound, share in (("power", 0.5), ("memory", math.nan), ("memory", -1.0), ("", 0.5)):
        assert roofline.advice(bound, share, 0.0, 100.0, 0.0) == ""
