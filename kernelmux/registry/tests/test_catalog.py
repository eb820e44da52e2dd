"""Every spec is complete, and its own reference passes its own bound."""

import re

import pytest
import torch

from kernelmux.registry import catalog
from kernelmux.registry.errors import ArgumentError, SpecError, UnknownName
from kernelmux.registry.spec import cases, numerics
from kernelmux.registry.spec.op_spec import NoExact
from kernelmux.registry.spec.signature import exact_arguments

OPS = catalog.names()
SMALL = [(op, case) for op in OPS for case in catalog.spec(op).cases if case.tier in ("smoke", "ci")]


def make(spec, case, dtype):
    return spec.bind(**spec.drawn(case, dtype, cases.generator(spec.name, case.name, dtype)), **case.scalars)


def test_the_first_operators_are_there():
    assert {"add", "gelu", "reduce_sum", "softmax", "rms_norm", "rms_norm_backward"} <= set(OPS)
    assert {"transpose", "copy_column", "matmul", "attention"} <= set(OPS)


def test_a_misspelt_operator_gets_a_suggestion():
    with pytest.raises(UnknownName, match=r'unknown operator "sofmax".*did you mean "softmax"'):
        catalog.spec("sofmax")


@pytest.mark.parametrize(
    ("named", "wanted", "says"),
    [
        (("add",), ("fp64",), "--dtype fp64: expected one of fp32, fp16, bf16, which add takes"),
        (("matvec", "add", "gelu"), ("i8",), "--dtype i8: expected one of fp32, fp16, bf16, which add, gelu take"),
        (("add", "fp8_matmul"), ("i8",), "which add takes; one of e4m3, e5m2, which fp8_matmul takes"),
        (
            ("add", "matvec"),
            ("bf16", "e4m3"),
            "--dtype e4m3: expected one of fp32, fp16, bf16, which add takes; one of",
        ),
        (
            (),
            ("int8", "fp64"),
            "--dtype fp64: expected one of fp32, fp16, bf16, e4m3, e5m2, i8, i32, which the operators",
        ),
        ((), ("fp17",), 'got "fp17"'),
    ],
)
def test_a_dtype_that_a_named_operator_does_not_take_is_refused(named, wanted, says):
    with pytest.raises(ArgumentError, match=re.escape(says)):
        catalog.check_dtypes(named, wanted)


def test_operators_that_take_none_of_the_dtypes_are_named():
    catalog.check_dtypes(("add", "matvec"), ("bfloat16", "i8"))
    assert catalog.taking(("e5m2",)) == ("fp8_matmul",) and catalog.taking(()) == OPS
    assert (
        catalog.left_out(("e5m2",)) == f"fp8_matmul alone takes e5m2: the other {len(OPS) - 1} operators are left out"
    )
    assert catalog.left_out(("fp16", "bf16")) == "left out, as they take no fp16 or bf16: fp8_matmul, int8_matmul"
    assert catalog.left_out(()) == catalog.left_out(("fp32", "fp16", "e4m3", "i8")) == ""


@pytest.mark.parametrize("op", OPS)
def test_spec_is_documented_and_hashed(op):
    spec = catalog.spec(op)
    assert spec.summary and spec.math and spec.version >= 1
    assert len(spec.hash) == 12
    assert {c.tier for c in spec.cases} >= {"smoke", "ci", "full"}
    assert len({c.name for c in spec.cases}) == len(spec.cases)


@pytest.mark.parametrize("op", OPS)
def test_every_op_has_zero_size_and_odd_cases(op):
    sizes = [s for case in catalog.spec(op).cases for s in case.shapes.values()]
    assert any(0 in s for s in sizes)
    assert any(n % 2 and n > 1 for s in sizes for n in s)


@pytest.mark.parametrize(("op", "case"), SMALL, ids=lambda v: v if isinstance(v, str) else v.name)
def test_the_rounded_reference_is_within_the_bound(op, case):
    spec = catalog.spec(op)
    for dtype in case.dtypes or spec.dtypes:
        if not dtype.is_floating_point:
            continue
        call = make(spec, case, dtype)
        for output, ref, model in zip(spec.outputs, spec.evaluate(call), spec.errors, strict=True):
            assert tuple(ref.shape) == output.shape(call)
            kind = output.dtype_of(call)
            if not kind.is_floating_point:  # has to be equal, without a bound
                assert ref.dtype == kind
                continue
            limit = numerics.bound(model, numerics.FP32, ref, kind, dtype, exact_arguments(call), call.axes)
            assert numerics.compare(ref.to(kind), ref, limit.total).passed


@pytest.mark.parametrize("op", [op for op in OPS if not isinstance(catalog.spec(op).exact, NoExact)])
def test_exact_inputs_apply_and_their_result_is_representable(op):
    spec, applied = catalog.spec(op), 0
    for case in (c for c in spec.cases if c.tier in ("smoke", "ci")):
        for dtype in case.dtypes or spec.dtypes:
            made = spec.exact(case, dtype, cases.generator(op, case.name, dtype))
            if made is None:
                continue
            applied += 1
            call = spec.bind(**made, **case.scalars)
            (ref, *_) = spec.evaluate(call)
            stored = ref.to(spec.outputs[0].dtype_of(call)).to(ref.dtype)
            # eps = 1e-6 beside 2^24 is below half an ulp of fp32, in which rms_norm is defined, but not of float64
            torch.testing.assert_close(stored, ref, rtol=2.0**-40, atol=0, equal_nan=True)
    assert applied


def test_costs_count_bytes_and_flops():
    call = catalog.spec("matmul").bind(torch.empty(4, 8, dtype=torch.float16), torch.empty(8, 2, dtype=torch.float16))
    assert (call.cost.bytes, call.cost.flops, call.cost.unit) == (2 * (32 + 16 + 8), 2 * 4 * 8 * 2, "tensor")


def test_attention_costs_what_its_queries_see():
    spec, q, k = catalog.spec("attention"), torch.empty(1, 1, 4, 64), torch.empty(1, 1, 2, 64)
    seen = {(q, None): 1 + 2 + 3 + 4, (q, 2): 1 + 2 + 2 + 2, (k, None): 0 + 0 + 1 + 2}
    for (keys, window), pairs in seen.items():
        cost = spec.bind(q, keys, keys, True, window=window).cost
        assert cost.flops == 4 * pairs * 64 and cost.unit == "fma"
    assert spec.bind(q, q, q, precision="tf32").cost.unit == "tensor"


def test_a_spec_without_cases_is_refused():
    spec = catalog.spec("add")
    fields = {name: getattr(spec, name) for name in spec.__dataclass_fields__}
    with pytest.raises(SpecError, match="a spec needs cases"):
        type(spec)(**{**fields, "cases": ()})
