"""torch.vmap beyond what the check `integration` asks of every operator; gradients that are the same in every way."""

import functools
import math
import warnings
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import kernelmux as kx
from kernelmux.conformance.variations import torch_ways
from kernelmux.conformance.variations.torch_ways import FUNCTION, OPERATOR
from kernelmux.registry import catalog
from kernelmux.registry.backend import lookup as registered
from kernelmux.registry.call import dispatch
from kernelmux.registry.choice import warn_once
from kernelmux.registry.errors import ArgumentError, FallbackWarning, UnsupportedError
from kernelmux.registry.spec import cases

KERNELS = [name for name in ("triton", "cuda") if not registered.unavailable(name, torch.device("cpu"))]
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*on the emulator"),
    pytest.mark.filterwarnings("ignore:.*vmap runs one call per example"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
SIZE = 3  # examples
X = torch.randn(SIZE, 12, generator=torch.Generator().manual_seed(0))
WEIGHTS = torch.randn(SIZE, 12, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def anew():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def call(op, way, values, backend="torch_ref"):
    return torch_ways.way(op, way, backend)(values)


def smallest(op, count=1):
    """The scalars of the smallest case that has elements, and `count` sets of tensors."""
    spec = catalog.spec(op)
    filled = (c for c in spec.cases if all(map(math.prod, c.shapes.values())))
    case = min(filled, key=lambda c: sum(map(math.prod, c.shapes.values())))
    dtype = (case.dtypes or spec.dtypes)[0]
    rng = cases.generator(op, "vmap", dtype)
    scalars = {name: value for name, value in case.scalars.items() if name != cases.INPUTS}
    return scalars, [spec.drawn(case, dtype, rng) for _ in range(count)]


@pytest.mark.parametrize("op", catalog.names())
def test_vmap_of_an_empty_batch_has_the_shapes_of_an_example(op):
    scalars, [tensors] = smallest(op)
    want = call(op, "operator", {**tensors, **scalars})
    empty = {name: x.new_empty(0, *x.shape) for name, x in tensors.items()}
    found = torch.vmap(lambda *own: call(op, "operator", {**scalars, **dict(zip(empty, own, strict=True))}))(
        *empty.values()
    )
    assert [(y.shape, y.dtype) for y in found] == [((0, *y.shape), y.dtype) for y in want]


@pytest.mark.parametrize("compiled", [False, True])
def test_the_outputs_of_an_empty_batch_lead_to_what_wants_a_gradient(compiled):
    x = X.clone().requires_grad_()
    run = torch.vmap(lambda w: torch.ops.kernelmux.rms_norm(x, w, backend="torch_ref"))
    run = torch.compile(run, fullgraph=True, backend="aot_eager") if compiled else run
    (grad,) = torch.autograd.grad(run(WEIGHTS[:0]).sum(), x)
    assert torch.equal(grad, torch.zeros_like(X))


@pytest.mark.parametrize("way", [FUNCTION, OPERATOR])
@pytest.mark.parametrize("at", [0, 2, -1])
def test_images_of_a_batch_may_lie_in_any_order(at, way):
    """Their results are contiguous: of an example torch does not say whether its channels lie last."""
    x, w = torch.randn(SIZE, 2, 3, 5, 4), torch.randn(2, 3, 3, 3)
    grad_out = kx.conv2d(x[0], w, backend="torch_ref")
    cases: list[tuple[str, Any, Any]] = [
        ("conv2d", {"x": x}, {"weight": w}),
        ("conv2d_backward_input", {"grad_out": torch.stack([grad_out] * SIZE)}, {"weight": w}),
        ("conv2d_backward_weight", {"x": x}, {"grad_out": grad_out, "kernel": (3, 3)}),
        ("max_pool2d", {"x": x}, {"kernel": 2}),
    ]
    for op, batched, rest in cases:
        run, drawn = (
            torch_ways.way(op, way, "torch_ref"),
            [dict(zip(batched, own, strict=True)) for own in zip(*batched.values(), strict=True)],
        )
        (found,) = torch_ways.mapped(run, rest, drawn, at)
        torch.testing.assert_close(found, torch.stack([run({**rest, **own})[0] for own in drawn]))


@pytest.mark.parametrize("op", ["polynomial", "softmax", "rms_norm"])
def test_a_function_over_no_example_has_the_shapes_of_one(op):
    x = torch.empty(0, 4)
    given = (x, torch.empty(0, 4)) if op == "rms_norm" else (x,)
    assert torch.vmap(lambda *own: getattr(kx, op)(*own, backend="torch_ref"))(*given).shape == (0, 4)
    assert torch.vmap(lambda x: kx.polynomial(x, backend="torch_ref"))(torch.empty(0)).shape == (0,)


def test_examples_without_memory_are_not_computed_one_by_one():
    x = torch.empty(1, 3, device="meta").expand(2**40, 3)
    found, index = (
        torch.vmap(lambda x, op=op: op(x))(x) for op in (torch.ops.kernelmux.reduce_sum, torch.ops.kernelmux.argmax)
    )
    assert found.shape == index.shape == (2**40,) and found.is_meta and index.dtype == torch.int64


@pytest.mark.parametrize("lower", [torch.float16, torch.bfloat16])
def test_a_loop_under_autocast_keeps_dtypes(lower):
    weights = WEIGHTS.to(torch.float16 if lower == torch.bfloat16 else torch.bfloat16)
    x = X.to(weights.dtype)
    run = torch.vmap(lambda w: torch.ops.kernelmux.rms_norm(x, w, backend="torch_ref"))
    with torch.autocast("cpu", lower):
        found = run(weights)
    assert torch.equal(found, torch.stack([kx.rms_norm(x, w, backend="torch_ref") for w in weights]))


NOT_OF_EXAMPLES = [
    ("softmax", {}, torch.zeros(SIZE), "softmax: axis: expected a tensor with at least one axis for x with 0 axes"),
    ("reduce_sum", {"axis": -2}, torch.ones(SIZE, 4), "expected -1 <= axis < 1 for x with 1 axes, got -2"),
    ("reduce_sum", {"axis": 1}, torch.ones(SIZE, 4), "expected -1 <= axis < 1 for x with 1 axes, got 1"),
]


@pytest.mark.parametrize("backend", ["torch_ref", *KERNELS])
@pytest.mark.parametrize("way", (FUNCTION, OPERATOR))
@pytest.mark.parametrize(("op", "scalars", "x", "text"), NOT_OF_EXAMPLES)
def test_an_axis_is_one_of_the_example(op, scalars, x, text, way, backend):
    run_one = torch_ways.way(op, way, backend)

    def one(example):
        return run_one({"x": example, **scalars})

    for run, batch in ((one, x[0]), (torch.vmap(one), x), (torch.vmap(torch.vmap(one)), x[None])):
        with pytest.raises(ArgumentError, match=text):
            run(batch)
    with pytest.raises(Exception, match=text):  # of torch, around ours
        torch.compile(torch.vmap(one), backend="aot_eager")(x)


@pytest.mark.parametrize("backend", ["torch_ref", *KERNELS])
@pytest.mark.parametrize("at", [0, 1, 2, -1])
@pytest.mark.parametrize("axis", [0, 1, -1, -2, None])
def test_reductions_along_every_axis(axis, at, backend):
    x = torch.randn(2, 3, 4)
    want = torch.stack([kx.reduce_sum(example, axis=axis, backend="torch_ref") for example in x.unbind(at)])
    for way in (FUNCTION, OPERATOR):
        found = torch.vmap(lambda e, way=way: call("reduce_sum", way, {"x": e, "axis": axis}, backend)[0], at)(x)
        torch.testing.assert_close(found, want)


def norm(weight, backend):
    return torch.ops.kernelmux.rms_norm(X, weight, backend=backend)


@pytest.mark.parametrize("backend", ["torch_ref", *KERNELS])
def test_a_loop_over_weights_is_traced_nested_and_differentiated(backend):
    run = torch.vmap(lambda w: norm(w, backend))
    weights = WEIGHTS.clone().requires_grad_()
    want = torch.stack([kx.rms_norm(X, w, backend="torch_ref") for w in weights])
    (grad,) = torch.autograd.grad(want.square().sum(), weights)
    for way in (run, torch.compile(run, fullgraph=True, backend="aot_eager")):
        found = way(weights)
        torch.testing.assert_close(found, want)
        torch.testing.assert_close(torch.autograd.grad(found.square().sum(), weights)[0], grad)
    torch.testing.assert_close(make_fx(run)(WEIGHTS)(WEIGHTS), want.detach())
    torch.testing.assert_close(torch.vmap(run)(WEIGHTS[None]), want.detach()[None])
    torch.testing.assert_close(torch.func.grad(lambda w: run(w).square().sum())(WEIGHTS), grad)


@pytest.mark.parametrize("way", (FUNCTION, OPERATOR))
@pytest.mark.parametrize("backend", ["torch_ref", *KERNELS])
def test_gradients_of_a_shared_weight_are_those_of_each_example(backend, way):
    def loss(w, x):
        return call("rms_norm", way, {"x": x, "weight": w}, backend)[0].square().sum()

    examples = torch.stack([X, 2 * X + 1])
    found = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(WEIGHTS[0], examples)
    torch.testing.assert_close(found, torch.stack([torch.func.grad(loss)(WEIGHTS[0], x) for x in examples]))


@pytest.mark.parametrize("variant", ["plain", "exact"])
@pytest.mark.parametrize("op", ["rms_norm_backward", "add_rms_norm_backward", "cross_entropy_with_gradient"])
def test_what_torch_ref_differentiates_itself_is_right_under_vmap(op, variant):
    scalars, drawn = smallest(op, SIZE)
    found = torch.vmap(lambda own: call(op, "function", {**scalars, **own}, f"torch_ref/{variant}"))(
        {name: torch.stack([tensors[name] for tensors in drawn]) for name in drawn[0]}
    )
    for i, got in enumerate(found):
        want = [call(op, "function", {**scalars, **tensors}, f"torch_ref/{variant}")[i] for tensors in drawn]
        torch.testing.assert_close(got, torch.stack(want))


def told(run):
    """The texts of the warnings of a call."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run()
    assert all(w.filename == __file__ for w in found if w.category is FallbackWarning)
    return [str(w.message) for w in found if w.category is FallbackWarning]


def test_a_loop_is_said_once_and_a_call_for_all_examples_is_not(monkeypatch):
    monkeypatch.setattr(warn_once, "_told", set())
    text = (
        "rms_norm: vmap runs one call per example of the batch, because weight has the axes [N] and no leading ones\n"
        "  Said once."
    )
    run = torch.vmap(lambda w: norm(w, "torch_ref"))
    assert [told(lambda: run(WEIGHTS)) for _ in range(2)] == [[text], []]
    assert told(lambda: torch.vmap(lambda x: torch.ops.kernelmux.rms_norm(x, WEIGHTS[0]))(X)) == []
    assert "axis is None" in told(lambda: torch.vmap(torch.ops.kernelmux.reduce_sum)(X))[0]


def test_values_that_no_call_may_have_are_met_under_vmap():
    logits, target = torch.randn(SIZE, 2, 5), torch.tensor([[1, 4], [0, 0], [2, 9]])
    for way in (FUNCTION, OPERATOR):
        run = torch.vmap(lambda z, t, way=way: call("cross_entropy", way, {"logits": z, "target": t})[0])
        want = [torch.nn.functional.cross_entropy(z, t % 5) for z, t in zip(logits, target, strict=True)]
        torch.testing.assert_close(run(logits, target % 5), torch.stack(want))
        assert run(logits, target).isnan().tolist() == [False, False, True]
        assert torch.vmap(run)(logits[None], target[None]).isnan().tolist() == [[False, False, True]]
    lengths = torch.tensor([[1, 2], [2, 3]], dtype=torch.int32)
    pages, table = torch.randn(2, 1, 2, 8).half(), torch.tensor([[0], [1]], dtype=torch.int32)
    found = torch.vmap(lambda n: kx.paged_attention(pages[:, 0], pages, pages, table, n, backend="torch_ref"))(lengths)
    assert found.isnan().all(-1).all(-1).tolist() == [[False, False], [False, True]]


ANGLES = (torch.randn(1, 2, 3, 8), torch.randn(3, 4), torch.randn(3, 4))


@pytest.mark.parametrize("wanted", [(1,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("chain", ["torch_ref", ",".join([*KERNELS, "torch_ref"])])
@pytest.mark.filterwarnings("ignore:.*because these cannot run the call")
def test_rope_has_the_gradients_of_its_angles_in_every_way(chain, wanted):
    def grads(rope):
        given = [x.clone().requires_grad_(i in wanted) for i, x in enumerate(ANGLES)]
        return torch.autograd.grad(rope(*given, backend=chain).square().sum(), [given[i] for i in wanted])

    want = grads(kx.rope)
    compiled = torch.compile(lambda *args, **how: kx.rope(*args, **how), fullgraph=True, backend="aot_eager")
    for found in (grads(torch.ops.kernelmux.rope), grads(compiled)):
        assert all(map(torch.equal, found, want))


@pytest.mark.parametrize("rope", [kx.rope, torch.ops.kernelmux.rope])
@pytest.mark.parametrize("chain", [None, "torch_ref"])
def test_rope_without_memory_has_the_gradients_of_its_angles(chain, rope):
    given = [x.to("meta").requires_grad_() for x in ANGLES]
    grads = torch.autograd.grad(rope(*given, backend=chain).sum(), given)
    assert [g.shape for g in grads] == [x.shape for x in ANGLES]


@pytest.mark.parametrize("backend", KERNELS)
def test_kernels_refuse_the_gradients_of_angles_in_every_way(backend):
    x, cos, sin = ANGLES
    for rope in (kx.rope, torch.ops.kernelmux.rope):
        with pytest.raises(UnsupportedError, match="rope has a gradient for x alone"):
            rope(x, cos.clone().requires_grad_(), sin, backend=backend)
        with pytest.raises(UnsupportedError, match="rope has a gradient for x alone"):
            rope(x.to("meta"), cos.to("meta").requires_grad_(), sin.to("meta"), backend=backend)
        assert rope(x.clone().requires_grad_(), cos, sin, backend=backend).requires_grad


NOTHING = [
    ("conv2d", {"x": (0, 2, 4, 4), "weight": (3, 2, 3, 3)}, {}),
    ("conv2d", {"x": (2, 0, 4, 4), "weight": (3, 0, 3, 3), "bias": (3,)}, {}),
    ("conv2d", {"x": (2, 2, 4, 4), "weight": (0, 2, 3, 3)}, {}),
    ("conv2d_backward_input", {"grad_out": (2, 0, 2, 2), "weight": (0, 3, 3, 3)}, {}),
    ("conv2d_backward_weight", {"grad_out": (0, 3, 2, 2), "x": (0, 2, 4, 4)}, {"kernel": (3, 3)}),
]


@pytest.mark.parametrize(("op", "shapes", "scalars"), NOTHING)
def test_sums_of_nothing_stay_in_the_graph(op, shapes, scalars):
    tensors = {name: torch.ones(shape) for name, shape in shapes.items()}
    for way in (FUNCTION, OPERATOR):
        _, found = torch_ways.gradients(torch_ways.way(op, way, "torch_ref"), {**tensors, **scalars})
        assert found.keys() == shapes.keys()
        for name, grad in found.items():
            assert grad is not None and grad.shape == shapes[name] and (name == "bias" or not grad.any())


@pytest.mark.parametrize("op", ["argmax", "reduce_max", "reduce_min", "reduce_sum"])
@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("keepdim", [False, True])
def test_reductions_keep_the_axes_of_the_example(op, axis, keepdim):
    x = torch.randn(3, 2, 4, 5)
    run = functools.partial(dispatch.function(op), axis=axis, keepdim=keepdim, backend="torch_ref")
    assert torch.equal(torch.vmap(run)(x), torch.stack([run(example) for example in x]))


def test_a_norm_with_a_weight_for_each_example_is_rounded_once():
    """torch's own rule rounds the normalised row to fp16 before it multiplies."""
    rng = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(shape, generator=rng).half() for shape in ((5, 17), (5, 17), (5, 17)))
    got = torch.vmap(lambda *own: kx.layer_norm(*own, backend="torch_ref"))(x, weight, bias)
    right = [
        kx.layer_norm(*own, backend="torch_ref") for own in zip(x.float(), weight.float(), bias.float(), strict=True)
    ]
    assert got.dtype == torch.float16 and torch.equal(got, torch.stack(right).half())
