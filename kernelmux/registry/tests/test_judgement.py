"""Judging results by the bound of their spec: what agrees, what does not, and what is left open."""

import torch

import kernelmux as kx
from kernelmux.registry import catalog
from kernelmux.registry.backend import judge
from kernelmux.registry.backend import lookup as registered

X = torch.linspace(-2, 2, 12).reshape(3, 4)
EXACT = registered.variants("torch_ref", "softmax")["exact"]


def result(y, name="one/plain"):
    return judge.Result(name, EXACT, (y,))


def test_a_result_within_its_bound_is_right_and_one_beyond_is_not():
    call = catalog.spec("softmax").bind(X)
    y = torch.softmax(X, -1)
    assert not judge.judge(call, result(y), None).wrong
    assert not judge.judge(call, result(y * (1 + 2**-22)), result(y)).wrong
    (line,) = judge.judge(call, result(y * (1 + 2**-12)), result(y, "other/plain")).wrong
    assert line.startswith("one/plain: 12 of 12 elements off, worst y[")


def test_a_nan_where_none_belongs_is_wrong_and_one_that_belongs_is_right():
    x = X.clone()
    x[1] = torch.nan
    call, y = catalog.spec("softmax").bind(x), torch.softmax(x, -1)
    assert not judge.judge(call, result(y), None).wrong
    assert judge.judge(call, result(torch.softmax(X, -1)), None).wrong
    y[0, 0] = torch.nan
    assert judge.judge(call, result(y), None).wrong


def test_subnormal_numbers_may_be_flushed_where_the_spec_says_so():
    call = catalog.spec("rms_norm").bind(torch.full((2,), 2.0**-127), torch.ones(2), 1e-20)
    kept = call.spec.evaluate(call)[0].float()
    assert kept.min() > 2.0**-94
    assert not judge.judge(call, result(kept), None).wrong
    assert not judge.judge(call, result(torch.zeros(2)), None).wrong
    assert judge.judge(call, result(kept + 1), None).wrong


def test_values_that_the_spec_leaves_open_are_not_judged():
    call = catalog.spec("attention").bind(*(torch.full((1, 1, 2, 4), torch.inf).half() for _ in range(3)))
    outputs = torch.zeros(1, 1, 2, 4).half(), torch.zeros(1, 1, 2)
    found = judge.judge(call, judge.Result("one/plain", EXACT, outputs), None)
    assert "arise at places that depend on the tiling" in found.open and not found.wrong
    assert judge.undefined(catalog.spec("add").bind(X * torch.inf, X)) is None


def test_a_call_too_large_for_its_reference_needs_two_results(monkeypatch):
    monkeypatch.setattr(judge, "AFFORDABLE", {"cpu": (8, 8)})
    call, y = catalog.spec("softmax").bind(X), torch.softmax(X, -1)
    assert (
        judge.judge(call, result(y), None).open == "too large for the float64 reference, and there is no second result"
    )
    assert judge.judge(call, result(y), result(y, "other/plain")).against == "each other: one/plain and other/plain"
    assert judge.judge(call, result(y), result(y * 1.01, "other/plain")).wrong


def test_two_results_near_the_largest_number_agree():
    """One overflows, the other one does not: either is right within the bound."""
    spec = catalog.spec("add")
    largest = torch.tensor([65504.0], dtype=torch.float16)
    call = spec.bind(largest, torch.tensor([15.99], dtype=torch.float16))
    one = judge.Result("one/plain", EXACT, (largest,))
    other = judge.Result("other/plain", EXACT, (torch.tensor([torch.inf], dtype=torch.float16),))
    for pair in ((one, other), (other, one)):
        assert list(judge._against_each_other(call, *pair)) == []
    far = judge.Result("far/plain", EXACT, (torch.tensor([6e4], dtype=torch.float16),))
    assert len(list(judge._against_each_other(call, far, other))) == 1


def test_a_wrong_form_of_result_is_a_violation():
    spec = catalog.spec("softmax")
    call = spec.bind(X)
    short = judge.Result("short/plain", EXACT, (X[0],))
    assert "gives y as fp32[4], expected fp32[3, 4]" in judge.judge(call, short, None).wrong[0]


def test_every_operator_agrees_with_itself():
    """The judgement knows the outputs, saved ones too, the arithmetic and the domains of every operator."""
    kx.shadow_report(reset=True)
    for op in catalog.names():
        spec = catalog.spec(op)
        case = next(c for c in spec.cases if c.tier == "smoke")
        dtype = spec.dtypes[0]
        tensors = spec.drawn(case, dtype, torch.Generator().manual_seed(1))
        scalars = {n: v for n, v in case.scalars.items() if n != "inputs"}
        with kx.use("torch_ref", ops=op, shadow="torch_ref"):
            getattr(kx, op)(**tensors, **scalars)
    rows = kx.shadow_report(reset=True).rows
    assert [(r.op, r.agreed, r.last) for r in rows] == [(op, 1, "") for op in sorted(catalog.names())]
