"""Roundings that a variant declares: who may, what they add to a bound, where they are told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kernelmux.registry import catalog
from kernelmux.registry.backend import judge
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.backend.validation import check_ladder, check_rounds
from kernelmux.registry.call import dispatch, temporary_backends
from kernelmux.registry.cli import main
from kernelmux.registry.errors import ArgumentError, SpecError
from kernelmux.registry.spec import numerics
from kernelmux.registry.spec.numerics import Rounding

SPEC = catalog.spec("swiglu")
PLAIN = registered.variants("torch_ref", "swiglu")["plain"]
MINE = """
from kernelmux.registry import backend
from kernelmux.registry.backend import Implementation

PLAIN = backend.variants("torch_ref", "swiglu")["plain"]
ONE = Implementation(fn=PLAIN.fn, idea="mine", rounds=PLAIN.rounds)
"""
A, B = torch.randn(2, 4096, generator=torch.Generator().manual_seed(7)).bfloat16()


def limit(rounds: tuple[Rounding, ...]) -> numerics.Bound:
    call = SPEC.bind(A, B)
    how = replace(PLAIN, rounds=rounds).computes("y", call.dtype, call.scalars)
    ref = SPEC.evaluate(call)[0]
    return numerics.bound(SPEC.errors[0], how, ref, call.dtype, call.dtype, (A.double(), B.double()), call.axes)


def twice(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One rounding more than `plain`: of a sigmoid, before its product with a."""
    return torch.sigmoid(a) * a * b


def test_a_declared_rounding_adds_half_a_unit_of_the_intermediate_and_no_more() -> None:
    (silu,), bare = PLAIN.rounds, limit(())
    found = limit((silu,))
    wanted = 2.0**-8 * (F.silu(A.double()) * B.double()).abs() + 2.0**-126 * B.double().abs()
    assert not bare.declared.any() and torch.allclose(found.declared, wanted, rtol=1e-12, atol=0)
    assert torch.equal(found.total - found.declared > 0, bare.total > 0)
    assert "declared" in found.at((0,)) and "declared: rounds silu(a) to the storage dtype" in found.formula
    assert "declared" not in bare.at((0,)) and "declared" not in bare.formula


@pytest.mark.parametrize(
    ("fn", "rounds", "right"),
    [
        (PLAIN.fn, PLAIN.rounds, True),
        (PLAIN.fn, (), False),
        (twice, PLAIN.rounds, False),
        (twice, PLAIN.rounds * 2, True),
    ],
)
def test_who_rounds_once_more_than_it_declares_is_wrong(fn: Any, rounds: tuple[Rounding, ...], right: bool) -> None:
    call = SPEC.bind(A, B)
    made = judge.Result("one/made", replace(PLAIN, fn=fn, rounds=rounds), (fn(A, B),))
    assert (not judge.judge(call, made, None).wrong) is right


def test_a_rounding_belongs_to_the_outputs_that_it_names() -> None:
    found = registered.variants("torch_ref", "swiglu_backward")["plain"]
    told = {o: [r.what for r in found.computes(o, torch.bfloat16, {}).rounds] for o in ("grad_a", "grad_b")}
    assert told == {"grad_a": ["grad_out * b"], "grad_b": ["silu(a)"]}


@pytest.mark.parametrize(
    ("backend", "last", "rounds", "says"),
    [
        ("cuda", False, PLAIN.rounds, r"expected none, got silu\(a\): only a composite backend"),
        ("triton", False, PLAIN.rounds, "a kernel is held to the bound of the spec"),
        ("torch_ref", True, PLAIN.rounds, "expected none of the last variant of a ladder, which a plain call runs"),
        ("torch_ref", False, ("silu(a)",), r"expected a tuple of Rounding\(...\)"),
        (
            "torch_ref",
            False,
            (replace(PLAIN.rounds[0], output="z"),),
            r"an output among y or \"\" for all, got .* of 'z'",
        ),
        ("torch_ref", False, (replace(PLAIN.rounds[0], what=""),), "expected what is rounded"),
    ],
)
def test_who_may_declare_one(backend: str, last: bool, rounds: Any, says: str) -> None:
    one = replace(PLAIN, rounds=rounds)
    ladder = {"one": one} if last else {"one": one, "two": replace(PLAIN, rounds=())}
    with pytest.raises(SpecError, match=says):
        check_ladder(registered.backend(backend), "a_module", SPEC, ladder)


def test_a_baseline_may_and_what_stands_behind_it_has_none() -> None:
    ladder = {"one": PLAIN, "two": replace(PLAIN, rounds=())}
    assert check_ladder(registered.backend("torch_ref"), "a_module", SPEC, ladder) == ladder
    check_rounds("ours/one", SPEC, replace(PLAIN, rounds=()), composite=False, last=True)


def test_it_is_told_where_variants_are_listed_and_where_a_call_is_explained(capsys: Any) -> None:
    assert PLAIN.declared == "silu(a)" and main.main(["show", "swiglu"]) == 0
    assert "fp32; also rounds silu(a)" in " ".join(capsys.readouterr().out.split())
    text = str(dispatch.explain("swiglu", A, B, backend="torch_ref/plain"))
    assert "-> torch_ref/plain" in text and "also rounds silu(a)" in text


def test_the_default_is_the_last_rung() -> None:
    assert dispatch.which("swiglu", A, B, backend="torch_ref") == "torch_ref/exact"


def test_a_function_from_a_file_is_held_to_the_bound_of_the_spec(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    with (
        pytest.raises(ArgumentError, match="only a composite backend"),
        temporary_backends.joined(f"{tmp_path}/mine.py:ONE", "swiglu"),
    ):
        raise AssertionError("it was taken in")
