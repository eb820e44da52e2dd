"""A scalar of two numbers: a call gives one int or two, everything behind it sees a pair."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend import timings
from kernelmux.registry.backend.description import Implementation
from kernelmux.registry.call import dispatch, fast_path
from kernelmux.registry.call.plan import CallPlans
from kernelmux.registry.choice import predicate
from kernelmux.registry.cli import type_stubs
from kernelmux.registry.errors import ArgumentError
from kernelmux.registry.interop import torch_ops
from kernelmux.registry.spec import signature
from kernelmux.registry.spec.cases import Case, written
from kernelmux.registry.spec.cost import Cost
from kernelmux.registry.spec.docstrings import documentation
from kernelmux.registry.spec.numerics import EQUAL
from kernelmux.registry.spec.op_spec import NoExact, OpSpec
from kernelmux.registry.spec.signature import Constraint, Output, Scalar, Tensor

seen: list[Any] = []
X = torch.arange(60.0).reshape(6, 10)


def normalise(arguments: dict[str, Any], axes: Mapping[str, Any]) -> None:
    arguments["step"] = arguments["step"] or arguments["stride"]


def derive(arguments: Mapping[str, Any], axes: Mapping[str, Any]) -> dict[str, int]:
    return {f"O{axis}": -(-axes[axis] // step) for axis, step in zip("HW", arguments["step"], strict=True)}


def kept(x: torch.Tensor, stride: Any, step: Any = None) -> torch.Tensor:
    seen.append((stride, step))
    return x[:: step[0], :: step[1]].clone()


SPEC = OpSpec(
    name="kept_by_steps",
    version=1,
    summary="Every step-th row and column.",
    math="y = x[::step, ::step]",
    inputs=(
        Tensor("x", "H W"),
        Scalar("stride", int, 1, range=(1, 100), length=2, trials=(2, (2, 3))),
        Scalar("step", int, None, range=(1, 100), length=2, optional=True),
    ),
    outputs=(Output("y", like="x", dims="OH OW"),),
    reference=kept,
    error=EQUAL,
    exact=NoExact("a copy"),
    constraints=(Constraint("stride of at most 50", lambda v: max(v["stride"]) <= 50),),
    normalise=normalise,
    derive=derive,
    cases=(Case("x=6x10 stride=2x3"),),
    workloads=(Case("x=6x10"), Case("x=60x100 stride=2")),
    cost=lambda call: Cost(bytes=1, flops=1),
)


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The public function of an operator that a made-up variant of torch_ref runs."""
    specs, variants = catalog.spec, registered.variants
    made = {"slices": Implementation(kept, idea="slices")}
    monkeypatch.setattr(catalog, "spec", lambda op: SPEC if op == SPEC.name else specs(op))
    monkeypatch.setattr(registered, "variants", lambda b, op: made if op == SPEC.name else variants(b, op))
    monkeypatch.setattr(registered, "implements", lambda backend, op: backend == "torch_ref")
    monkeypatch.setattr(dispatch, "_plans", CallPlans())
    seen.clear()
    yield dispatch.function.__wrapped__(SPEC.name)
    torch._dynamo.reset()


@pytest.mark.parametrize("given", [2, (2, 2), [2, 2], np.int64(2), (np.int64(2), 2), torch.Size([2, 2])])
def test_a_kernel_sees_a_pair_of_ints_in_every_spelling(public: Any, given: Any) -> None:
    for _ in range(3):
        assert torch.equal(public(X, given), X[::2, ::2])
    assert seen == [((2, 2), (2, 2))] * 3
    assert all(type(n) is int for pairs in seen for pair in pairs for n in pair)


def test_output_lengths_follow_from_a_pair_that_another_one_stands_for() -> None:
    call = SPEC.bind(X, (2, 3))
    assert call.arguments["step"] == (2, 3) and (call.axes["OH"], call.axes["OW"]) == (3, 4)
    assert SPEC.outputs[0].shape(SPEC.bind(X, 1, [6, 5])) == (1, 2)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (0, "1 <= stride <= 100, got 0"),
        ((2, -1), "1 <= stride <= 100, got -1"),
        ((2, 101), "1 <= stride <= 100, got 101"),
        ((1, 2, 3), r"int, or 2 of them, got \(1, 2, 3\)"),
        ([2], r"int, or 2 of them, got \[2\]"),
        ((), r"int, or 2 of them, got \(\)"),
        (True, r"int, got True \(bool\)"),
        ((1, True), r"int, got True \(bool\)"),
        ([1, 2.0], r"int, got 2\.0 \(float\)"),
        (1.0, r"int, got 1\.0 \(float\)"),
        ("2x3", "int, got '2x3'"),
        (None, "int, got None"),
        (((1, 1), 1), r"int, got \(1, 1\) \(tuple\)"),
    ],
)
def test_wrong_numbers_are_refused_also_after_a_right_call_that_equals_them(public: Any, given: Any, text: str) -> None:
    for right in (1, (1, 1), (1, 2)):
        for _ in range(3):
            public(X, right)
        with pytest.raises(ArgumentError, match=f"^kept_by_steps: stride: expected {text}"):
            public(X, given)


def test_a_constraint_on_a_pair_names_both_numbers() -> None:
    with pytest.raises(ArgumentError, match=r"kept_by_steps: expected stride of at most 50, got .*stride = \(2, 60\)"):
        SPEC.bind(X, (2, 60))


def test_a_call_with_a_tuple_is_compared_quickly_and_one_with_a_list_is_remembered(public: Any) -> None:
    for _ in range(3):
        public(X, (2, 3))
    quick = dispatch._plans.quick[SPEC.name]
    assert quick(X, (2, 3), None, None) is not fast_path.MISSED
    for other in ((2, 4), (2.0, 3), (True, 3), 2, [2, 3]):
        assert quick(X, other, None, None) is fast_path.MISSED
    before = len(dispatch._plans)
    for _ in range(2):
        public(X, [3, 3])
    assert len(dispatch._plans) == before + 1


def test_an_operator_of_torch_takes_one_or_two(public: Any) -> None:
    assert signature.schema(SPEC) == (
        "kept_by_steps(Tensor x, int[2] stride=1, int[2]? step=None, *, str? backend=None) -> Tensor"
    )
    operator = torch_ops.operator(SPEC.name)
    for given in (2, [2, 2], (2, 2)):
        assert torch.equal(operator(X, given), X[::2, ::2])
    assert torch.equal(operator(X, 1, 3), X[::3, ::3]) and torch.equal(operator(X, 1, (1, 2)), X[:, ::2])
    assert operator(X.to("meta"), (2, 3)).shape == (3, 4)


@pytest.mark.parametrize("given", [2, (2, 2), [2, 2]])
def test_a_compiled_call_takes_one_or_two(public: Any, given: Any) -> None:
    assert torch.equal(torch.compile(lambda x: public(x, given), fullgraph=True, backend="eager")(X), X[::2, ::2])


def test_a_case_writes_both_as_a_shape() -> None:
    case = SPEC.cases[0]
    assert case.scalars == {"stride": (2, 3)} and case.name == "x6x10-stride2x3" and written((2, 3)) == "2x3"
    for text in ("x=6x10 stride=2x3,", "x=6x10 stride=2xx3", "x=6x10 stride=(2x3)"):
        with pytest.raises(ArgumentError, match=r"stride: expected a number|shape: expected name="):
            _ = SPEC.case(text).scalars


def test_conditions_of_a_file_compare_pairs() -> None:
    holds = {
        "stride == (2, 3)": True,
        "stride != (2, 3)": False,
        "(2, 3) == stride": True,
        "stride in [(1, 1), (2, 3)]": True,
        "step == stride": True,
        "OH == 3 and stride != (1, 1)": True,
    }
    for text, expected in holds.items():
        assert predicate.parse(text, "rule").holds(SPEC.bind(X, (2, 3))) is expected, text


@pytest.mark.parametrize("text", ["stride == 2", "2 != stride", "stride in (1, 2)", "stride >= 2", "stride * 2 == 4"])
def test_a_condition_that_compares_a_pair_with_one_number_is_a_mistake(text: str) -> None:
    with pytest.raises(ArgumentError, match="rule: expected a condition such as"):
        predicate.parse(text, "rule").check(SPEC)


def test_calls_with_other_pairs_are_not_compared_by_their_times() -> None:
    kinds = [timings._kind(SPEC.bind(X, stride)) for stride in (1, 2, (2, 1), (2, 2))]
    assert kinds[1] == kinds[3] and len(set(kinds)) == 3


def test_types_and_documentation_say_so() -> None:
    stub = type_stubs._function(SPEC)
    assert "stride: int | tuple[int, int] = 1" in stub and "step: int | tuple[int, int] | None = None" in stub
    assert "stride: int, or 2 of them" in documentation(SPEC)
