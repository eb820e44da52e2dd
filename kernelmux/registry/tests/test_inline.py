"""The quick comparison of public calls: whatever differs in one fact of the key is looked up, and the rest is counted."""

import threading

import pytest
import torch
import torch.autograd.forward_ad as forward
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import kernelmux as kx
from kernelmux.registry import catalog
from kernelmux.registry.call import dispatch, fast_path
from kernelmux.registry.choice import precedence

X = torch.linspace(-2, 2, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def nothing_remembered():
    dispatch._plans.clear()
    yield
    dispatch._plans.clear()


def quick(op, *values, backend=None):
    """The comparison that calls like this one leave behind."""
    spec = catalog.spec(op)
    values = spec.given(*values)
    for _ in range(2):
        getattr(kx, op)(*values, backend=backend)
    found = dispatch._plans.quick[op]
    assert found(*values, backend) is not fast_path.MISSED
    return found


def freed(x):
    x = x.clone()
    x.untyped_storage().resize_(0)
    return x


OTHERS = {
    "class": lambda: torch.nn.Parameter(X, requires_grad=False),
    "shape": lambda: X.reshape(4, 3),
    "strides": lambda: torch.empty_strided((3, 4), (1, 3)),
    "dtype": lambda: X.to(torch.int32).view(torch.float32).half(),
    "device": lambda: X.to("meta"),
    "alignment": lambda: torch.zeros(13)[1:].view(3, 4),
    "freed memory": lambda: freed(X),
    "negative bit": lambda: torch._neg_view(X),
    "gradient": lambda: X.clone().requires_grad_(),
    "inference": lambda: inferred(),
    "functional": lambda: torch._to_functional_tensor(X),
    "nested": lambda: torch._nested_tensor_from_mask(torch.ones(1, 2, 3), torch.ones(1, 2, dtype=torch.bool)),
    "sparse": lambda: X.to_sparse(),
    "quantized": lambda: torch._empty_affine_quantized((3, 4), scale=1.0, zero_point=0, dtype=torch.quint8),
    "no tensor": lambda: 1.0,
    "nothing": lambda: None,
}


def inferred():
    with torch.inference_mode():
        return X.clone()


@pytest.mark.filterwarnings("ignore")  # torch's own, of prototypes
@pytest.mark.parametrize("fact", OTHERS)
def test_a_tensor_that_differs_in_one_fact_is_looked_up(fact):
    same = quick("softmax", X)
    assert same(OTHERS[fact](), -1, 1.0, None) is fast_path.MISSED
    added = quick("add", X, X.clone())
    assert added(X, OTHERS[fact](), None) is fast_path.MISSED


def test_one_tensor_for_two_arguments_is_a_call_of_its_own():
    other = torch.randn(3, 4)
    twice = quick("add", X, X)
    assert torch.equal(twice(other, other, None), 2 * other)
    assert twice(X, X.clone(), None) is fast_path.MISSED
    assert twice(OTHERS["alignment"](), other, None) is fast_path.MISSED
    unaligned = OTHERS["alignment"]()
    assert twice(unaligned, unaligned, None) is fast_path.MISSED
    apart = quick("add", X, X.clone())
    assert apart(X, X, None) is fast_path.MISSED
    assert torch.equal(apart(X, other, None), X + other)


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


SURROUNDINGS = {
    "use": lambda: kx.use("torch_ref"),
    "strict": lambda: kx.use("auto", strict=True),
    "a dispatch mode": Watching,
    "autocast": lambda: torch.autocast("cpu"),
    "autocast of another device": lambda: torch.autocast("cuda", dtype=torch.bfloat16),
    "forward derivatives": forward.dual_level,
    "inference mode": torch.inference_mode,
}


@pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda'")
@pytest.mark.parametrize("name", SURROUNDINGS)
def test_what_surrounds_a_call_is_seen(name):
    same = quick("softmax", X)
    if name == "autocast of another device" and not torch.cuda.is_available():
        torch.set_autocast_enabled("cuda", True)
        try:
            assert same(X, -1, 1.0, None) is fast_path.MISSED
        finally:
            torch.set_autocast_enabled("cuda", False)
        return
    with SURROUNDINGS[name]():
        assert same(X, -1, 1.0, None) is fast_path.MISSED
    assert same(X, -1, 1.0, None) is not fast_path.MISSED


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
def test_traces_and_transforms_are_seen():
    same, missed = quick("softmax", X), []

    def seen(x):
        missed.extend([same(X, -1, 1.0, None) is fast_path.MISSED, same(x, -1, 1.0, None) is fast_path.MISSED])
        return x + 1

    make_fx(seen)(X)
    torch.vmap(seen)(X[None])
    torch.func.grad(lambda x: seen(x).sum())(X)
    inside = len(missed)
    torch.jit.trace(seen, (X,), check_trace=False)
    assert inside == 6 and len(missed) == 8 and all(missed)


def test_the_mode_of_gradients_is_seen():
    leaf = X.clone().requires_grad_()
    same = quick("softmax", leaf)
    with torch.no_grad():
        assert same(leaf, -1, 1.0, None) is fast_path.MISSED
        frozen = quick("softmax", leaf)
    assert frozen(leaf, -1, 1.0, None) is fast_path.MISSED
    assert kx.softmax(leaf).requires_grad


@pytest.mark.parametrize(
    ("axis", "scale", "backend"),
    [
        (1, 1.0, None),
        (True, 1.0, None),
        (-1, 2.0, None),
        (-1, 1, None),
        (-1, True, None),
        (-1.0, 1.0, None),
        (-1, 1.0, "torch_ref"),
        (-1, 1.0, ("torch_ref",)),
        (-1, 1.0, ["torch_ref"]),
        (torch.tensor(-1), 1.0, None),
    ],
)
def test_scalars_and_the_argument_are_compared_with_their_class(axis, scale, backend):
    assert quick("softmax", X)(X, axis, scale, backend) is fast_path.MISSED


def test_an_optional_tensor_is_there_or_not():
    weight, bias = torch.rand(4), torch.rand(4)
    with_it, without = quick("layer_norm", X, weight, bias), quick("layer_norm", X, weight)
    assert with_it(X, weight, None, 1e-5, None) is fast_path.MISSED
    assert without(X, weight, bias, 1e-5, None) is fast_path.MISSED


def test_a_default_that_changes_is_seen():
    same = quick("softmax", X)
    precedence.set_default("softmax", "torch_ref")
    try:
        assert same(X, -1, 1.0, None) is fast_path.MISSED
    finally:
        precedence.set_default("softmax", None)
    assert same(X, -1, 1.0, None) is fast_path.MISSED
    same = quick("softmax", X)
    precedence.reread()
    assert same(X, -1, 1.0, None) is fast_path.MISSED


def test_what_has_no_memory_to_compare_is_looked_up():
    x, y = torch.zeros(0, 4), torch.zeros(0, 4)
    for _ in range(3):
        assert torch.equal(kx.add(x, y), x + y)
    assert "add" not in dispatch._plans.quick


@pytest.mark.parametrize("around", [lambda: torch.autocast("cpu"), Watching])
def test_nothing_is_prepared_inside_of_what_the_guard_would_take_for_granted(around):
    with around():
        for _ in range(3):
            kx.softmax(X)
    assert "softmax" not in dispatch._plans.quick


def test_calls_of_one_key_get_a_comparison_that_fits_and_few_of_them():
    first = quick("softmax", X)
    with torch.inference_mode():
        assert quick("softmax", X) is not first
    for _ in range(10):
        kx.softmax(X)
        with torch.inference_mode():
            kx.softmax(X)
    (plan,) = dispatch._plans.values()
    assert len(plan.quick) == dispatch.ANEW


def test_calls_that_cannot_be_compared_do_not_pay_for_a_comparison():
    quick("add", X, X.clone())
    for _ in range(2):
        kx.add(torch.zeros(0, 4), torch.zeros(0, 4))
    assert "add" not in dispatch._plans.quick


def test_every_call_is_counted_and_recorded():
    before = sum(e.calls for e in kx.stats().entries if e.operator == "softmax")
    with kx.record() as log:
        for _ in range(5):
            kx.softmax(X)
    after = sum(e.calls for e in kx.stats().entries if e.operator == "softmax")
    assert log.calls == 5 and after - before == 5 and "softmax" in dispatch._plans.quick


def test_kinds_of_calls_that_take_turns_do_not_change_what_is_compared_first():
    first, other, third = quick("softmax", X), torch.rand(5, 6), torch.rand(7)
    for x in (other, third, X, other, third, X):
        assert torch.allclose(kx.softmax(x), torch.softmax(x, -1))
    assert dispatch._plans.quick["softmax"] is first
    kx.softmax(other), kx.softmax(other)
    assert dispatch._plans.quick["softmax"] is not first and len(dispatch._plans) == 3


def test_arguments_are_normalised_and_copied_as_in_a_call_that_is_looked_up():
    for x, axis in ((X, -2), (X.t(), 0), (torch._neg_view(X), -1)):
        found = [kx.softmax(x, axis=axis) for _ in range(4)]
        assert all(torch.equal(y, torch.softmax(x, axis)) for y in found)
        assert dispatch._plans.quick["softmax"](x, axis, 1.0, None) is not fast_path.MISSED


def test_threads_with_other_shapes_get_their_own_results():
    wrong: list[int] = []

    def calls(n):
        x = torch.rand(n, n + 1)
        want = torch.softmax(x, -1)
        wrong.extend(n for _ in range(300) if not torch.equal(kx.softmax(x), want))

    threads = [threading.Thread(target=calls, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
