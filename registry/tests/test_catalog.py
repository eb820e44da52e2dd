"""Every spec is complete, and its own reference passes its own bound."""

import pytest
import torch

from kernelmux.registry import cases, catalog, numerics
from kernelmux.registry.errors import SpecError, UnknownName
from kernelmux.registry.spec import NoExact, exact_arguments

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
