"""Tensors that torch itself refuses inside of a call: each an error of ours that names operator and argument."""

import subprocess
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

import kernelmux as kx
from kernelmux.registry import catalog
from kernelmux.registry.errors import ArgumentError, UnsupportedError
from kernelmux.registry.interop import autocast

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # masked tensors are a prototype; emulated backends
X = torch.linspace(-2, 2, 12).reshape(3, 4)
WRONG: Any = None
ODD: Any = (np.int64(-1), Fraction(1, 2))  # an axis and a factor
PLAIN, OPS = "torch_ref", torch.ops.kernelmux
KERNELS = ["torch_ref", "triton", "cuda"]


class Wrapped(torch.Tensor):
    """A user's tensor: its operators are those of the tensor inside."""

    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.held = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]
        return cls(func(*(a.held if isinstance(a, Wrapped) else a for a in args), **(kwargs or {})))


class Refusing(Wrapped):
    """One that takes no operator at all."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]
        return NotImplemented


class Failing(Wrapped):
    """One with an error of its own."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]
        raise ValueError("of the user")


@pytest.mark.parametrize("made", [torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer])
def test_a_parameter_without_values(made):
    told = rf"rms_norm: weight: expected a tensor with values, got a {made.__name__}"
    for ask in (kx.rms_norm, lambda *a: kx.which("rms_norm", *a), lambda *a: kx.bind("rms_norm", a)):
        with pytest.raises(ArgumentError, match=told):
            ask(X, made())
    with torch.autocast("cpu"), pytest.raises(ArgumentError, match=told):
        kx.rms_norm(X, made())
    assert not autocast._eligible(made())


@pytest.mark.parametrize("backend", KERNELS)
def test_fake_tensors_beside_real_ones(backend):
    mode = FakeTensorMode()
    fake = mode.from_tensor(X)
    for ask in (lambda *a: kx.add(*a, backend=backend), lambda *a: OPS.add(*a, backend=backend)):
        assert ask(fake, fake).shape == X.shape
        with pytest.raises(ArgumentError, match="add: y: expected a fake tensor, as x is fake, got a Tensor in memory"):
            ask(fake, X)
        with pytest.raises(ArgumentError, match="add: x: expected a fake tensor, as y is fake"):
            ask(X, fake)
        with mode, pytest.raises(ArgumentError, match="add: x: expected a fake tensor, as the mode in force is fake"):
            ask(X, X)
        with pytest.raises(ArgumentError, match="add: x, y: expected fake tensors of one FakeTensorMode"):
            ask(fake, FakeTensorMode().from_tensor(X))
    with FakeTensorMode(allow_non_fake_inputs=True) as both:
        assert kx.add(both.from_tensor(X), X, backend=backend).shape == X.shape


@pytest.mark.parametrize("backend", KERNELS)
def test_classes_that_take_no_operator(backend):
    masked = torch.masked.masked_tensor(X, X > 0)
    for odd in (masked, Refusing(X)):
        with pytest.raises(UnsupportedError, match=rf"add: y: expected .* got y of .*{type(odd).__name__}, whose"):
            OPS.add(X, odd, backend=backend)
    with pytest.raises(UnsupportedError, match=r"softmax: x: .*Refusing, whose __torch_dispatch__ returns NotImpl"):
        kx.softmax(Refusing(X), backend=backend)
    if backend == PLAIN:
        assert kx.add(masked, masked, backend=backend).get_mask().equal(X > 0)
    else:
        with pytest.raises(UnsupportedError, match=r"softmax: x: .*MaskedTensor"):
            kx.softmax(masked, backend=backend)


@pytest.mark.parametrize("backend", KERNELS)
def test_classes_that_work_keep_working_and_have_errors_of_their_own(backend):
    class Subclass(torch.Tensor):
        pass

    want = kx.add(X, X, backend=backend)
    assert kx.add(Wrapped(X), X, backend=backend).held.equal(want)
    assert OPS.add(Wrapped(X), X, backend=backend).held.equal(want)
    for plain in (torch.nn.Parameter(X), torch.nn.Buffer(X), X.as_subclass(Subclass)):
        assert kx.add(plain, X, backend=backend).equal(want)
    with pytest.raises(ValueError, match=r"^of the user$") as told:
        kx.add(Failing(X), X, backend=backend)
    assert not isinstance(told.value, ArgumentError)


@pytest.mark.parametrize("backend", KERNELS)
def test_tensors_of_inference_mode_that_a_backward_would_keep(backend):
    with torch.inference_mode():
        weight = torch.ones(4)
    x = X.clone().requires_grad_()
    told = "rms_norm: weight: expected a tensor that a backward can keep for x, got one made in torch.inference_mode"
    for ask in (kx.rms_norm, OPS.rms_norm):
        for _ in range(3):
            with pytest.raises(ArgumentError, match=told):
                ask(x, weight, backend=backend)
        with torch.no_grad():
            assert ask(x, weight, backend=backend).equal(kx.rms_norm(X, weight, backend=backend))
    kx.rms_norm(x, weight.clone(), backend=backend).sum().backward()


@pytest.mark.filterwarnings("ignore:.*prototype")
def test_explain_describes_a_masked_tensor_inside_of_a_fake_mode():
    """Its class asks an operator whether it is contiguous, which the mode refuses."""
    x = torch.masked.MaskedTensor(torch.zeros(1, 2, 4, 4), torch.ones(1, 2, 4, 4, dtype=torch.bool))
    with FakeTensorMode(), torch.inference_mode():
        assert "x fp32[1, 2, 4, 4], kernel=(3, 2)" in str(kx.explain("max_pool2d", x, (3, 2)))


def test_a_bound_call_inside_of_autocast_tells_it_too():
    """It comes past the comparison that stands in the text of a bound call."""
    with torch.inference_mode():
        grad = torch.ones(4)
    a, b = torch.nn.Parameter(torch.ones(4)), torch.ones(4)
    bound = kx.bind("geglu_backward", (grad.clone(), a, b), backend="torch_ref")
    with (
        torch.autocast("cpu"),
        pytest.raises(kx.ArgumentError, match="geglu_backward: grad_out: expected a tensor that a"),
    ):
        bound(grad, a, b)


@pytest.mark.parametrize("backend", KERNELS)
def test_lengths_that_depend_on_data(backend):
    with FakeTensorMode(shape_env=ShapeEnv()):
        x = torch.ones(torch.zeros(7).nonzero().shape[0], 4)
        assert kx.softmax(x, backend=backend).dim() == 2
        for ask in (kx.add, OPS.add):
            with pytest.raises(UnsupportedError, match=r"add: x: expected lengths that are known") as told:
                ask(x, torch.ones(5, 4), backend=backend)
            assert isinstance(told.value.__cause__, GuardOnDataDependentSymNode)


def test_fake_tensors_of_indices_have_no_values_to_look_at():
    spec = catalog.spec("paged_attention")
    case = spec.cases[0]
    mode = FakeTensorMode()
    drawn = spec.drawn(case, spec.dtypes[0], torch.Generator().manual_seed(0))
    given: dict[str, Any] = {name: mode.from_tensor(x) for name, x in drawn.items()}
    with pytest.raises(ArgumentError, match=r"paged_attention: q, .*: expected a call inside of their FakeTensorMode"):
        kx.paged_attention(**given, backend=PLAIN)
    with mode:
        assert kx.paged_attention(**given, backend=PLAIN).shape == drawn["q"].shape
    assert OPS.paged_attention(**given, backend=PLAIN).shape == drawn["q"].shape


class Sub(torch.Tensor):
    """A subclass without ways of its own."""


@pytest.mark.parametrize("ask", [lambda x: kx.silu(x, backend=PLAIN), lambda x: OPS.silu(x, backend=PLAIN)])
def test_a_subclass_in_memory_where_all_have_to_be_fake(ask):
    with (
        FakeTensorMode(),
        pytest.raises(ArgumentError, match=r"silu: x: expected a fake tensor, .* got a Sub in memory"),
    ):
        ask(X.as_subclass(Sub))
    with pytest.raises(ArgumentError, match="add: y: expected a fake tensor, as x is fake, got a Sub in memory"):
        kx.add(FakeTensorMode().from_tensor(X), X.as_subclass(Sub), backend=PLAIN)


@pytest.mark.parametrize("run", [kx.add, OPS.add])
def test_freed_memory_beside_a_fake_tensor(run):
    """torch would print it, and end the process."""
    freed = X.clone()
    freed.untyped_storage().resize_(0)
    with pytest.raises(ArgumentError, match=r"add: y: .*a storage that was freed"):
        run(FakeTensorMode().from_tensor(X), freed, backend=PLAIN)


@pytest.mark.parametrize("run", [kx.add, OPS.add])
def test_what_torch_says_under_vmap(run):
    """Of the tensors behind those that vmap shows."""
    freed = X.clone()
    freed.untyped_storage().resize_(0)
    told = {
        "expected a strided tensor, got torch._mkldnn": X.to_mkldnn(),
        "expected [0-9]+ elements in memory, got a storage that was freed": freed,
        "whose __torch_dispatch__ returns NotImplemented": Refusing(X),
    }
    for text, odd in told.items():
        for in_dims in (0, (None, 0)) if odd is not freed else (0,):
            with pytest.raises((ArgumentError, UnsupportedError), match=rf"add: y: .*{text}"):
                torch.vmap(lambda x, y: run(x, y, backend=PLAIN), in_dims)(X if in_dims == 0 else X[0], odd)


def test_more_axes_than_torchs_own_operator_takes():
    with pytest.raises(UnsupportedError, match="gelu: x: expected as many axes as torch's own operator takes, got 64"):
        kx.gelu(X.reshape((1,) * 62 + (3, 4)), backend=PLAIN)


def test_classes_that_do_not_know_one_another():
    masked = torch.masked.masked_tensor(X[0], X[0] > 0)
    with pytest.raises(UnsupportedError, match=r"rms_norm: weight: .*MaskedTensor"):
        kx.rms_norm(X.as_subclass(Sub), masked, backend=PLAIN)


@pytest.mark.parametrize("around", [torch.no_grad, lambda: torch.autocast("cpu")])
def test_the_operator_of_torch_refuses_a_nested_tensor(around):
    nested = torch.nested.nested_tensor([X[:2], X], layout=torch.jagged)
    old = torch._nested_tensor_from_mask(torch.ones(1, 2, 3), torch.ones(1, 2, dtype=torch.bool))
    for odd in (nested, old):
        with around(), pytest.raises(ArgumentError, match="add: y: expected a strided tensor, got a nested tensor"):
            OPS.add(X, odd, backend=PLAIN)


def test_what_torch_says_in_a_fake_mode_before_the_call_is_bound():
    y = X.T.contiguous()
    with FakeTensorMode():
        with torch.autocast("cpu"), pytest.raises(ArgumentError, match="matmul: a: expected a fake tensor"):
            kx.matmul(X, y, backend=PLAIN)
        with pytest.raises(ArgumentError, match=r"log_softmax: x: expected a torch.Tensor"):
            kx.log_softmax(WRONG, backend=PLAIN)
        with pytest.raises(ArgumentError, match="silu: x: expected a fake tensor"):
            torch.vmap(lambda x: OPS.silu(x, backend=PLAIN))(X)


def test_freed_memory_in_a_fake_mode_is_refused_before_torch_prints_it():
    code = """
import torch, kernelmux as kx
from torch._subclasses.fake_tensor import FakeTensorMode
x = torch.ones(2000, requires_grad=True).clone()
x.untyped_storage().resize_(0)
with FakeTensorMode():
    for run in (torch.ops.kernelmux.silu, torch.vmap(torch.ops.kernelmux.silu)):
        try:
            run(x)
        except kx.ArgumentError as error:
            print(str(error).partition(", got")[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "silu: x: expected 2000 elements in memory\n" * 2, done.stderr


@pytest.mark.parametrize("backend", KERNELS)
def test_scalars_are_checked_where_torch_watches(backend):
    """Also by backends whose calls run as operators of torch there, which take fewer kinds of numbers."""
    fake = FakeTensorMode().from_tensor(X)
    for run, x in (
        (lambda f, x: f(x), fake),
        (lambda f, x: torch.vmap(f)(x), X),
        (lambda f, x: torch.vmap(f)(x), X[:0]),
    ):
        for axis, text in ((1j, "expected an int, got 1j"), (None, "expected an int"), ("0", "expected an int")):
            with pytest.raises(ArgumentError, match=f"softmax: axis: {text}"):
                run(lambda x, axis=axis: kx.softmax(x, axis, backend=backend), x)
        got = run(lambda x: kx.softmax(x, *ODD, backend=backend), x)
        assert got.shape == x.shape


def test_torch_compile_goes_on_where_lengths_depend_on_data():
    @torch.compile(backend="eager")
    def rows(x, mask):
        return kx.softmax(x[mask], backend=PLAIN)

    mask = torch.tensor([True, False, True])
    assert rows(X, mask).equal(kx.softmax(X[mask], backend=PLAIN))


def test_symbolic_trace_is_told_what_to_use_instead():
    with pytest.raises(UnsupportedError, match=r"softmax: x: .* got a torch.fx.Proxy: .* use torch.export"):
        torch.fx.symbolic_trace(lambda x: kx.softmax(x))
    traced = torch.fx.symbolic_trace(lambda x: OPS.softmax(x, backend=PLAIN))
    assert traced(X).equal(kx.softmax(X, backend=PLAIN))
