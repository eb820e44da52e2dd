"""Keywords that an operator does not have, and arguments that a call leaves out: Python's TypeError, and what was meant."""

import inspect
from typing import Any

import pytest
import torch

import kernelmux as kx
from kernelmux.registry import catalog
from kernelmux.registry.call import dispatch
from kernelmux.registry.util import keywords

X = torch.zeros(3, 4)


@pytest.mark.parametrize(
    ("op", "given", "meant"),
    [
        ("softmax", {"x": X, "dim": 1}, "axis"),
        ("softmax", {"input": X}, "x"),
        ("softmax", {"x": X, "AXIS": 1}, "axis"),
        ("softmax", {"x": X, "bakend": "cuda"}, "backend"),
        ("reduce_sum", {"x": X, "keep_dim": True}, "keepdim"),
        ("cross_entropy", {"input": X, "target": X}, "logits"),
        ("rms_norm", {"x": X, "weight": X[0], "epsilon": 1e-6}, "eps"),
        ("add", {"x": X, "other": X}, "y"),
        ("attention", {"q": X, "k": X, "v": X, "is_causal": True}, "causal"),
    ],
)
def test_an_unknown_keyword_gets_the_name_that_was_meant(op, given, meant):
    name = next(iter(set(given) - {*catalog.spec(op).signature.parameters}))
    told = rf"{op}\(\) got an unexpected keyword argument '{name}': did you mean {meant}\? it takes "
    with pytest.raises(TypeError, match=told):
        dispatch.function(op)(**given)
    if meant != "backend":
        with pytest.raises(TypeError, match=told):
            kx.which(op, **given)
        with pytest.raises(TypeError, match=told):
            catalog.spec(op).bind(**given)


def test_no_keyword_is_taken_for_a_name_of_pythons():
    x = torch.ones(2, 3)
    odd: Any = {"self": x}
    for ask in (
        lambda: kx.add(x, x, **odd),
        lambda: kx.which("add", x, x, **odd),
        lambda: kx.bind("add", (x, x), **odd),
    ):
        with pytest.raises(TypeError, match=r"add\(\) got an unexpected keyword argument 'self'"):
            ask()


def test_without_a_name_that_is_like_it_the_error_lists_them():
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'keepdim': it takes x, axis, scale, backend$"):
        dispatch.function("softmax")(X, keepdim=True)
    with pytest.raises(TypeError, match=r"argument 'z{196}\.\.\.: it takes x, y, backend$"):
        dispatch.function("add")(X, X, **{"z" * 5000: 1})


@pytest.mark.parametrize("op", sorted(catalog.names()))
def test_what_is_left_out_is_named_in_the_words_of_python(op):
    required = [name for name, p in catalog.spec(op).signature.parameters.items() if p.default is p.empty]
    namespace: dict[str, object] = {}
    exec(f"def {op}({', '.join(required)}): pass", namespace)
    for left_out in (required, required[-1:]):
        given = {name: X for name in required if name not in left_out}
        with pytest.raises(TypeError) as ours:
            dispatch.function(op)(**given)
        with pytest.raises(TypeError) as pythons:
            namespace[op](**given)
        assert str(ours.value) == str(pythons.value)


def test_the_signature_that_is_shown_is_that_of_the_spec():
    assert str(inspect.signature(kx.softmax)) == "(x, axis=-1, scale=1.0, *, backend=None)"
    assert str(inspect.signature(kx.add)) == "(x, y, *, backend=None)"


def test_every_name_from_elsewhere_leads_to_one_that_exists():
    ours = {name for op in catalog.names() for name in catalog.spec(op).signature.parameters}
    assert all(set(names) <= ours for names in keywords.ELSEWHERE.values())
